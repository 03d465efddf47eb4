// SPDX-License-Identifier: Apache-2.0
//
// A picture on a canvas that can be read and zoomed, by pointer and by keyboard.  It shows the part
// [x0, x1) by [y0, y1) of a field of cells; each kind of picture extends it and says:
//
//   size(width)          the plot's width and height in pixels for a figure that is width wide
//   draw(pen, plot)      paints the plot; what is slow is kept in this.painted
//   read(x, y)           the sentence about cell x, y
//
// Cells are counted in whole numbers; a picture without rows has one.

const FEW = 16; // cells of a side: wide enough without a closer look

class Chart {
	constructor(figure, columns, rows, hint) {
		this.figure = figure;
		this.canvas = figure.querySelector('canvas[tabindex]');
		this.output = figure.querySelector('output');
		this.output.dataset.hint = hint;
		this.output.setAttribute('aria-live', 'polite');
		this.whole = {x0: 0, x1: columns, y0: 0, y1: rows};
		this.view = {...this.whole};
		this.margin = {left: 84, right: 16, top: 8, bottom: 26}; // so that pictures line up
		this.cursor = null; // the cell that is read
		this.drag = null; // where a rectangle begins and ends, in pixels
		this.painted = null;
		this.addButtons(figure.querySelector('.zoom'));
		this.listen();
		const laidOut = () => requestAnimationFrame(() => this.layout());
		new ResizeObserver(laidOut).observe(figure);
	}

	addButtons(home) {
		home.hidden = this.whole.x1 <= FEW && this.whole.y1 <= FEW;
		const add = (label, title, act) => {
			const button = element('button', {type: 'button', textContent: label, title});
			button.setAttribute('aria-label', title);
			button.addEventListener('click', act);
			home.append(button);
			return button;
		};
		add('+', 'Zoom in', () => this.zoom(0.5));
		this.outButtons = [
			add('\u2212', 'Zoom out', () => this.zoom(2)),
			add('whole', 'Show the whole', () => this.show(this.whole)),
		];
	}

	listen() {
		const on = (type, act) => this.canvas.addEventListener(type, act);
		on('pointermove', (event) => this.pointerMoved(event));
		on('pointerleave', () => this.pointTo(null));
		on('pointerdown', (event) => this.pointerDown(event));
		on('pointerup', () => this.pointerUp());
		on('pointercancel', () => this.dropDrag());
		on('dblclick', () => this.show(this.whole));
		on('wheel', (event) => this.wheel(event));
		on('keydown', (event) => this.key(event));
		on('blur', () => this.pointTo(null));
	}

	// ---- Between cells and pixels.

	layout() {
		const {left, right, top, bottom} = this.margin;
		const full = this.figure.clientWidth, ratio = window.devicePixelRatio || 1;
		if (full === this.full && ratio === this.ratio)
			return;
		const {width, height} = this.size(full - left - right);
		if (full <= left + right)
			return;
		this.plot = {left, top, width: Math.floor(width), height: Math.floor(height)};
		Object.assign(this, {full, ratio});
		this.canvas.style.height = `${this.plot.height + top + bottom}px`;
		this.canvas.width = Math.round(full * this.ratio);
		this.canvas.height = Math.round((this.plot.height + top + bottom) * this.ratio);
		this.repaint();
	}

	pixelX(x) {
		const {x0, x1} = this.view;
		return this.plot.left + (x - x0) / (x1 - x0) * this.plot.width;
	}

	pixelY(y) {
		const {y0, y1} = this.view;
		return this.plot.top + (y - y0) / (y1 - y0) * this.plot.height;
	}

	// The cell under a point of the canvas; null outside of the plot.
	cellAt(px, py) {
		const {left, top, width, height} = this.plot;
		const x = (px - left) / width, y = (py - top) / height;
		if (x < 0 || x >= 1 || y < 0 || y >= 1)
			return null;
		const {x0, x1, y0, y1} = this.view;
		return {x: Math.floor(x0 + x * (x1 - x0)), y: Math.floor(y0 + y * (y1 - y0))};
	}

	// How many cells an arrow moves.
	stepX() {
		return 1;
	}

	// ---- What is shown.

	show(view) {
		const fit = (low, high, end) => {
			const span = Math.min(Math.max(Math.round(high - low), 1), end);
			const from = Math.min(Math.max(Math.round(low), 0), end - span);
			return [from, from + span];
		};
		const [x0, x1] = fit(view.x0, view.x1, this.whole.x1);
		const [y0, y1] = fit(view.y0, view.y1, this.whole.y1);
		this.view = {x0, x1, y0, y1};
		this.repaint();
	}

	// Around the cell that is read, else around the middle.
	zoom(factor) {
		const {x0, x1, y0, y1} = this.view;
		const at = this.cursor ? {x: this.cursor.x + 0.5, y: this.cursor.y + 0.5}
				       : {x: (x0 + x1) / 2, y: (y0 + y1) / 2};
		this.show({x0: at.x - (at.x - x0) * factor, x1: at.x + (x1 - at.x) * factor,
			   y0: at.y - (at.y - y0) * factor, y1: at.y + (y1 - at.y) * factor});
	}

	pointTo(cell) {
		if (cell?.x === this.cursor?.x && cell?.y === this.cursor?.y)
			return;
		this.cursor = cell;
		this.output.textContent = cell ? this.read(cell.x, cell.y) : '';
		this.redraw();
	}

	repaint() {
		this.painted = null;
		this.redraw();
	}

	redraw() {
		if (!this.plot)
			return;
		const pen = this.canvas.getContext('2d');
		pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
		pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
		pen.font = '12px system-ui, "Liberation Sans", sans-serif';
		this.draw(pen, this.plot);
		if (this.cursor)
			this.drawCursor(pen);
		if (this.drag)
			this.drawDrag(pen);
		const same = (side) => this.view[side] === this.whole[side];
		for (const button of this.outButtons)
			button.disabled = Object.keys(this.whole).every(same);
	}

	drawCursor(pen) {
		const {x, y} = this.cursor, {left, top, width, height} = this.plot;
		const x0 = this.pixelX(x), x1 = this.pixelX(x + 1);
		const y0 = this.pixelY(y), y1 = this.pixelY(y + 1);
		pen.strokeStyle = color('ink');
		pen.globalAlpha = 0.35;
		pen.beginPath();
		pen.moveTo((x0 + x1) / 2, top);
		pen.lineTo((x0 + x1) / 2, top + height);
		if (this.whole.y1 > 1) {
			pen.moveTo(left, (y0 + y1) / 2);
			pen.lineTo(left + width, (y0 + y1) / 2);
		}
		pen.stroke();
		pen.globalAlpha = 1;
		if (x1 - x0 > 4 && (y1 - y0 > 4 || this.whole.y1 === 1))
			pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
	}

	drawDrag(pen) {
		const {from, to} = this.drag;
		pen.fillStyle = pen.strokeStyle = color('ink');
		pen.globalAlpha = 0.12;
		pen.fillRect(from.x, from.y, to.x - from.x, to.y - from.y);
		pen.globalAlpha = 1;
		pen.strokeRect(from.x, from.y, to.x - from.x, to.y - from.y);
	}

	// ---- Pointer.

	clamp(event) {
		const {left, top, width, height} = this.plot;
		const within = (at, low, span) => Math.min(Math.max(at, low), low + span - 0.01);
		return {x: within(event.offsetX, left, width),
			y: this.whole.y1 > 1 ? within(event.offsetY, top, height) : top};
	}

	pointerMoved(event) {
		if (this.drag) {
			this.drag.to = this.clamp(event);
			if (this.whole.y1 === 1)
				this.drag.to.y = this.plot.top + this.plot.height - 0.01;
			this.redraw();
		}
		this.pointTo(this.cellAt(event.offsetX, event.offsetY));
	}

	pointerDown(event) {
		if (event.button !== 0 || event.pointerType === 'touch' ||
		    !this.cellAt(event.offsetX, event.offsetY))
			return;
		this.canvas.setPointerCapture(event.pointerId);
		this.drag = {from: this.clamp(event), to: this.clamp(event)};
	}

	// A rectangle of some pixels is looked at closer; less is a click.
	pointerUp() {
		const drag = this.drag;
		this.drag = null;
		if (!drag)
			return;
		const {from, to} = drag;
		const a = this.cellAt(from.x, from.y), b = this.cellAt(to.x, to.y);
		const flat = Math.abs(from.y - to.y) < 6 && this.whole.y1 > 1;
		if (Math.abs(from.x - to.x) < 6 || flat || !a || !b)
			return this.redraw();
		this.show({x0: Math.min(a.x, b.x), x1: Math.max(a.x, b.x) + 1,
			   y0: Math.min(a.y, b.y), y1: Math.max(a.y, b.y) + 1});
	}

	dropDrag() {
		this.drag = null;
		this.redraw();
	}

	// The wheel scrolls the page; with Ctrl (or two fingers that pinch) it zooms.
	wheel(event) {
		if (!event.ctrlKey)
			return;
		event.preventDefault();
		this.pointTo(this.cellAt(event.offsetX, event.offsetY));
		this.zoom(2 ** (Math.sign(event.deltaY) * 0.5));
	}

	// ---- Keyboard.

	key(event) {
		const step = event.shiftKey ? 10 : 1, aside = step * this.stepX();
		const moves = {
			ArrowLeft: [-aside, 0], ArrowRight: [aside, 0],
			ArrowUp: [0, -step], ArrowDown: [0, step],
			Home: [-Infinity, 0], End: [Infinity, 0],
			PageUp: [0, -Infinity], PageDown: [0, Infinity],
		};
		if (moves[event.key] && !event.ctrlKey && !event.altKey)
			this.move(...moves[event.key]);
		else if (event.key === '+' || event.key === '=')
			this.zoom(0.5);
		else if (event.key === '-')
			this.zoom(2);
		else if (event.key === 'Escape' && this.drag)
			this.dropDrag();
		else if (event.key === 'Escape' || event.key === '0')
			this.show(this.whole);
		else
			return;
		event.preventDefault();
	}

	// The first key shows the first cell in view; the view follows the cell.
	move(dx, dy) {
		const {x0, x1, y0, y1} = this.view;
		const within = (value, end) => Math.min(Math.max(value, 0), end - 1);
		const at = this.cursor || {x: x0 - Math.sign(dx), y: y0 - Math.sign(dy)};
		const cell = {x: within(at.x + dx, this.whole.x1),
			      y: within(at.y + dy, this.whole.y1)};
		const shift = (value, low, high) =>
			Math.min(value - low, 0) + Math.max(value + 1 - high, 0);
		const sx = shift(cell.x, x0, x1), sy = shift(cell.y, y0, y1);
		if (sx !== 0 || sy !== 0)
			this.show({x0: x0 + sx, x1: x1 + sx, y0: y0 + sy, y1: y1 + sy});
		this.pointTo(cell);
	}
}

// Text that is read on any ground.
function rimmedText(pen, words, x, y) {
	pen.lineWidth = 4;
	pen.lineJoin = 'round';
	pen.strokeStyle = color('card');
	pen.strokeText(words, x, y);
	pen.fillStyle = color('ink');
	pen.fillText(words, x, y);
	pen.lineWidth = 1;
}
