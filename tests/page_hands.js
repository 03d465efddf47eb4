// SPDX-License-Identifier: Apache-2.0
//
// Put behind a page by tests/page.sh: works it as a reader would and leaves what it saw on <body>,
// for tests/page.py.

function press(canvas, ...keys) {
	for (const key of keys)
		canvas.dispatchEvent(new KeyboardEvent('keydown', {key, cancelable: true}));
}

// How many pixels of a picture aren't the background.
function inked(canvas) {
	const {width, height} = canvas;
	const copy = element('canvas', {width, height});
	const pen = copy.getContext('2d', {willReadFrequently: true});
	pen.drawImage(canvas, 0, 0);
	const {data} = pen.getImageData(0, 0, width, height);
	let count = 0;
	for (let i = 3; i < data.length; i += 4)
		count += data[i] > 0;
	return count;
}

function work() {
	const seen = {pictures: {}, tables: {}};
	for (const details of document.querySelectorAll('details'))
		details.open = true;
	for (const canvas of document.querySelectorAll('canvas[tabindex]')) {
		if (canvas.closest('[hidden]'))
			continue;
		const name = canvas.closest('[id]').id;
		const output = canvas.closest('figure').querySelector('output');
		const whole = inked(canvas);
		press(canvas, 'ArrowRight');
		const first = output.textContent;
		press(canvas, 'End', 'PageDown');
		const last = output.textContent;
		press(canvas, '+', '+', 'ArrowLeft');
		const zoomed = output.textContent;
		press(canvas, 'Escape');
		canvas.dispatchEvent(new Event('blur'));
		seen.pictures[name] = {whole, first, last, zoomed, again: inked(canvas)};
	}
	for (const input of document.querySelectorAll('fieldset:not([hidden]) input'))
		input.click();
	setTimeout(() => {
		for (const table of document.querySelectorAll('table'))
			seen.tables[table.closest('section').id] = [...table.rows].map((row) =>
				[...row.cells].map((cell) => cell.textContent));
		document.body.dataset.seen = JSON.stringify(seen);
	}, 500);
}

setTimeout(work, 500);
