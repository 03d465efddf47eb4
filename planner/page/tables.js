// SPDX-License-Identifier: Apache-2.0
//
// The same numbers as text, for screen readers, for copying and for who wants to be sure.  All
// text is set as text: what a manifest calls itself is never read as HTML.

// Heads that begin with # are of numbers.
function fillTable(table, heads, rows) {
	const line = (kind, cells) => {
		const row = document.createElement('tr');
		cells.forEach((text, i) => {
			const cell = document.createElement(kind);
			cell.textContent = text;
			if (heads[i].startsWith('#'))
				cell.className = 'number';
			row.append(cell);
		});
		return row;
	};
	table.replaceChildren(line('th', heads.map((head) => head.replace('#', ''))),
			      ...rows.map((row) => line('td', row)));
}

// A table inside <details> is made when it is first opened.
function later(details, fill) {
	details.addEventListener('toggle', () => fill(details.querySelector('table')), {once: true});
}

// One of several, as radio buttons.
function choice(home, names, chosen, act) {
	names.forEach((name, i) => {
		const label = document.createElement('label'), input = document.createElement('input');
		Object.assign(input, {type: 'radio', name: home.closest('section').id, checked: i === chosen});
		input.addEventListener('change', () => act(i));
		label.append(input, name);
		home.append(label);
	});
}

function showFindings(id, {count, list}) {
	const section = document.getElementById(id);
	section.hidden = count === 0;
	section.dataset.count = count;
	const rows = list.map(([kind, where, text, alike]) =>
		[kind, where, alike > 0 ? `${text} (and ${exact(alike)} more alike)` : text]);
	const told = list.reduce((sum, [, , , alike]) => sum + 1 + alike, 0);
	if (count > told)
		rows.push(['', '', `and ${exact(count - told)} more`]);
	const table = section.querySelector('table');
	fillTable(table, ['kind', 'where', 'what'], rows);
	for (const row of table.rows)
		row.cells[0].classList.add('kind');
}

// Who sends to one rank, or receives from it.
function showPairs(details, matrix) {
	const select = details.querySelector('select'), table = details.querySelector('table');
	const sides = [...Array(matrix.columns).keys()].map((x) => ({x, name: memberSpan(...matrix.sendersOf(x))}))
		.concat([...Array(matrix.rows).keys()].map((y) => ({y, name: memberSpan(...matrix.receiversOf(y))})));
	const fill = () => {
		const {x, y} = sides[select.selectedIndex];
		const others = x !== undefined ? Array.from({length: matrix.rows}, (_, i) => [x, i])
					       : Array.from({length: matrix.columns}, (_, i) => [i, y]);
		const rows = others.map(([cx, cy]) => [cx, cy, matrix.cells[cy * matrix.columns + cx]])
			.filter(([, , bytes]) => bytes > 0)
			.map(([cx, cy, bytes]) => [memberSpan(...matrix.sendersOf(cx)),
						   memberSpan(...matrix.receiversOf(cy)), exact(bytes), short(bytes)]);
		fillTable(table, ['from', 'to', '#bytes', '#'], rows);
	};
	later(details, () => {
		select.append(...sides.map(({name}) => new Option(name)));
		fill();
	});
	select.addEventListener('change', fill);
}

function showMembers(details) {
	const {senders, receivers, trainers} = data.plan;
	later(details, (table) => {
		const rows = places.map(({host, nics}, i) => {
			const sends = i < trainers, bytes = sends ? data.sent[i] : data.received[i];
			return [memberName(i), host, nics, exact(data.sent[i]), exact(data.received[i]),
				times(bytes, (sends ? senders : receivers).bytes_mean)];
		});
		fillTable(table, ['rank', 'host', '#NICs', '#bytes sent', '#bytes received', '#of the mean'], rows);
	});
}
