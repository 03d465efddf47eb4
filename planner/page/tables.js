// SPDX-License-Identifier: Apache-2.0
//
// The same numbers as text, for screen readers, for copying and for who wants to be sure.  All
// text is set as text: what a manifest calls itself is never read as HTML.

function element(tag, properties) {
	return Object.assign(document.createElement(tag), properties);
}

// Heads that begin with # are of numbers.
function fillTable(table, heads, rows) {
	const line = (tag, cells) => {
		const row = element('tr');
		row.append(...cells.map((text, i) => element(tag, {
			textContent: text, className: heads[i].startsWith('#') ? 'number' : '',
		})));
		return row;
	};
	table.replaceChildren(line('th', heads.map((head) => head.replace('#', ''))),
			      ...rows.map((row) => line('td', row)));
}

// A table inside <details> is made when it is first opened.
function later(details, fill) {
	const opened = () => fill(details.querySelector('table'));
	details.addEventListener('toggle', opened, {once: true});
}

// One of several, as radio buttons.
function choice(home, names, chosen, act) {
	names.forEach((name, i) => {
		const label = element('label'), group = home.closest('section').id;
		const input = element('input', {type: 'radio', name: group, checked: i === chosen});
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
	const columns = [...Array(matrix.columns).keys()], rows = [...Array(matrix.rows).keys()];
	const from = (x) => memberSpan(...matrix.sendersOf(x));
	const to = (y) => memberSpan(...matrix.receiversOf(y));
	const fill = () => {
		const x = select.selectedIndex, y = x - columns.length;
		const cells = y < 0 ? rows.map((to) => [x, to]) : columns.map((from) => [from, y]);
		const lines = cells.map(([x, y]) => [x, y, matrix.cells[y * matrix.columns + x]])
			.filter(([, , bytes]) => bytes > 0)
			.map(([x, y, bytes]) => [from(x), to(y), exact(bytes), short(bytes)]);
		fillTable(table, ['from', 'to', '#bytes', '#'], lines);
	};
	later(details, () => {
		const names = [...columns.map(from), ...rows.map(to)];
		select.append(...names.map((name) => new Option(name)));
		fill();
	});
	select.addEventListener('change', fill);
}

function showMembers(details) {
	const {senders, receivers, trainers} = data.plan;
	later(details, (table) => {
		const heads = ['rank', 'host', '#NICs', '#sent', '#received', '#of the mean'];
		const rows = places.map(({host, nics}, i) => {
			const sent = data.sent[i], received = data.received[i];
			const share = i < trainers ? times(sent, senders.bytes_mean)
						   : times(received, receivers.bytes_mean);
			return [memberName(i), host, nics, exact(sent), exact(received), share];
		});
		fillTable(table, heads, rows);
	});
}
