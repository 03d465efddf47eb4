// SPDX-License-Identifier: Apache-2.0
//
// What the page knows: the plan as planner/page_data.c wrote it, unpacked, and how its numbers are
// spelled.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);

// A reader of numbers that C packed into base64: seven bits a byte, lowest first.
function numbers(text) {
	const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
	let at = 0;
	return () => {
		let value = 0, unit = 1;
		for (; bytes[at] >= 128; unit *= 128)
			value += (bytes[at++] - 128) * unit;
		return value + bytes[at++] * unit;
	};
}

// The cells of planner/page_matrix.c: bytes by row and column, one Float64Array.
function unpackMatrix(packed) {
	const number = numbers(packed.cells);
	const columns = Math.ceil(packed.columns / packed.column_bin);
	const rows = Math.ceil(packed.rows / packed.row_bin);
	const cells = new Float64Array(columns * rows);
	const values = Array.from({length: number()}, number);
	for (let cell = 0; cell < cells.length;) {
		const token = number();
		const run = token % 2 === 1 ? number() + 1 : 1;
		cells.fill(values[Math.floor(token / 2)], cell, cell + run);
		cell += run;
	}
	return {...packed, columns, rows, cells};
}

// Each member's host, NICs and speed; without places every member is its own host with one NIC.
function unpackPlaces(runs, count) {
	if (runs.length === 0)
		return Array(count).fill({host: '', nics: 1, mbps: 0});
	return runs.flatMap(([host, nics, mbps, run]) => Array(run).fill({host, nics, mbps}));
}

const places = data.plan ? unpackPlaces(data.places, data.plan.members) : [];

// "trainer 2", "rollout 1.0": replica 1, rank 0; as the rest of weightsync names them.
function memberName(member) {
	const {trainers, replica_ranks: ranks} = data.plan;
	if (member < trainers)
		return `trainer ${member}`;
	const rank = member - trainers;
	return `rollout ${data.replicas[Math.floor(rank / ranks)]}.${rank % ranks}`;
}

// Members [first, first + count) on an axis.
function memberSpan(first, count) {
	const name = memberName(first);
	return count === 1 ? name : `${name} to ${memberName(first + count - 1)}`;
}

// ---- Numbers.

function sumOf(list) {
	return list.reduce((a, b) => a + b, 0);
}

function leastOf(list) {
	return list.reduce((a, b) => Math.min(a, b), Infinity);
}

function mostOf(list) {
	return list.reduce((a, b) => Math.max(a, b), 0);
}

function exact(number) {
	return Math.round(number).toLocaleString('en').replaceAll(',', '\u202f');
}

// What has too many digits for its place: 4 630 M.
function brief(count) {
	return count < 1e8 ? exact(count) : `${exact(count / 1e6)}\u00a0M`;
}

// Four digits and a unit: 1.234 GB.
function short(bytes) {
	const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
	let unit = 0;
	for (; bytes >= 999.5 && unit + 1 < units.length; unit++)
		bytes /= 1000;
	const digits = unit === 0 ? String(Math.round(bytes)) : bytes.toPrecision(4);
	return `${digits}\u00a0${units[unit]}`;
}

// What a reader may want to copy: 1.234 GB (1 234 000 000 bytes).
function both(bytes) {
	return `${short(bytes)} (${exact(bytes)} bytes)`;
}

function seconds(time, digits = 4) {
	return time < 0.1 ? `${(time * 1000).toPrecision(digits)}\u00a0ms`
			  : `${time.toPrecision(digits)}\u00a0s`;
}

// A ratio to the mean, as exact as it is near 1.
function times(value, mean) {
	return mean > 0 ? (value / mean).toFixed(3) : '1.000';
}

function percent(part, whole) {
	const share = whole > 0 ? 100 * part / whole : 0;
	return `${share > 0 && share < 0.1 ? share.toPrecision(1) : share.toFixed(1)} %`;
}

function plural(count, word) {
	return `${exact(count)} ${word}${count === 1 ? '' : 's'}`;
}

// Ticks at 1, 2 or 5 times a power of ten: about as many as wanted in [low, high].
function ticks(low, high, wanted) {
	const raw = (high - low) / Math.max(1, wanted);
	if (!(raw > 0))
		return [low];
	const power = 10 ** Math.floor(Math.log10(raw));
	const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
	const list = [];
	for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++)
		list.push(n * step);
	return list;
}
