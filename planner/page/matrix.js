// SPDX-License-Identifier: Apache-2.0
//
// The heat map of senders and receivers.  Where there are more cells than pixels, a dot shows the
// busiest of the cells that share it, so that no traffic disappears.

// A rank's name on an axis: 12 of the trainers, 1.3 of the rollouts.
function axisName(member) {
	return memberName(member).split(' ')[1];
}

class Matrix extends Chart {
	constructor(figure, matrix) {
		super(figure, matrix.columns, matrix.rows, 'Point to a cell to read it.');
		Object.assign(this, matrix);
		Object.assign(this.margin, {top: 40, bottom: 8});
		this.busy = matrix.cells.filter((bytes) => bytes > 0);
		const low = leastOf(this.busy), high = mostOf(this.busy);
		this.scale = new Scale(low, high, high / low > 20);
		this.total = sumOf(this.busy);
	}

	size(width) {
		const {x1: columns, y1: rows} = this.whole;
		return {width: Math.min(width, columns * 96),
			height: Math.min(Math.max(540, rows <= 640 ? rows : 0), rows * 40)};
	}

	// ---- Members behind the cells.

	sendersOf(x) {
		const first = x * this.column_bin;
		return [first, Math.min(this.column_bin, data.matrix.columns - first)];
	}

	receiversOf(y) {
		const first = y * this.row_bin;
		return [this.row_first + first, Math.min(this.row_bin, data.matrix.rows - first)];
	}

	read(x, y) {
		const bytes = this.cells[y * this.columns + x];
		const senders = this.sendersOf(x), receivers = this.receiversOf(y);
		const pair = `${memberSpan(...senders)} \u2192 ${memberSpan(...receivers)}`;
		if (bytes === 0)
			return `${pair}: nothing`;
		const from = places[senders[0]].host, to = places[receivers[0]].host;
		const hosts = from && to ? `; host ${from} \u2192 ${to}` : '';
		return `${pair}: ${both(bytes)}, ${percent(bytes, this.total)} of all${hosts}`;
	}

	// ---- Painting.

	draw(pen, plot) {
		this.painted ||= this.paint();
		pen.imageSmoothingEnabled = false;
		pen.drawImage(this.painted, plot.left, plot.top, plot.width, plot.height);
		this.drawGrid(pen, plot);
		this.drawNumbers(pen, plot);
		pen.strokeStyle = color('line');
		pen.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
		this.drawAxes(pen, plot);
	}

	// One pixel for each cell in view, or for as many as share a pixel of the screen.
	paint() {
		const {x0, x1, y0, y1} = this.view;
		const stepX = Math.ceil((x1 - x0) / (this.plot.width * this.ratio));
		const stepY = Math.ceil((y1 - y0) / (this.plot.height * this.ratio));
		const wide = Math.ceil((x1 - x0) / stepX), high = Math.ceil((y1 - y0) / stepY);
		this.shared = stepX * stepY > 1 ? `${stepX} \u00d7 ${stepY}` : '';
		const most = new Float64Array(wide * high);
		for (let y = y0; y < y1; y++) {
			const row = Math.floor((y - y0) / stepY) * wide;
			for (let x = x0; x < x1; x++) {
				const at = row + Math.floor((x - x0) / stepX);
				most[at] = Math.max(most[at], this.cells[y * this.columns + x]);
			}
		}
		return this.image(most, wide, high);
	}

	image(most, wide, high) {
		const image = new ImageData(wide, high);
		most.forEach((bytes, i) => {
			if (bytes > 0)
				image.data.set([...ramp(this.scale.share(bytes)), 255], i * 4);
		});
		const canvas = element('canvas', {width: wide, height: high});
		canvas.getContext('2d').putImageData(image, 0, 0);
		return canvas;
	}

	drawGrid(pen, plot) {
		const {x0, x1, y0, y1} = this.view;
		pen.fillStyle = color('card');
		for (const x of this.borders(x0, x1, plot.width, (x) => this.sendersOf(x)[0]))
			pen.fillRect(this.pixelX(x) - 0.5, plot.top, 1, plot.height);
		for (const y of this.borders(y0, y1, plot.height, (y) => this.receiversOf(y)[0])) {
			const thick = this.replicaBegins(this.receiversOf(y)[0]) ? 2 : 1;
			pen.fillRect(plot.left, this.pixelY(y) - thick / 2, plot.width, thick);
		}
	}

	// Between all cells, or hosts, or replicas: the closest that leave 12 pixels each.
	borders(low, high, pixels, memberOf) {
		const inside = Array.from({length: high - low - 1}, (_, i) => low + 1 + i);
		const hosts = inside.filter((at) => this.hostBegins(memberOf(at)));
		const replicas = inside.filter((at) => this.replicaBegins(memberOf(at)));
		const room = (list) => pixels / (list.length + 1) >= 12;
		return [inside, hosts, replicas].find(room) || [];
	}

	hostBegins(member) {
		return places[member].host !== places[member - 1]?.host;
	}

	replicaBegins(member) {
		const rank = member - data.plan.trainers;
		return rank > 0 && rank % data.plan.replica_ranks === 0;
	}

	drawNumbers(pen, plot) {
		const {x0, x1, y0, y1} = this.view;
		if (plot.width / (x1 - x0) < 76 || plot.height / (y1 - y0) < 18)
			return;
		pen.textAlign = 'center';
		pen.textBaseline = 'middle';
		for (let y = y0; y < y1; y++)
			for (let x = x0; x < x1; x++) {
				const bytes = this.cells[y * this.columns + x];
				pen.fillStyle = bytes > 0 ? inkOn(ramp(this.scale.share(bytes)))
							  : color('soft');
				pen.fillText(bytes > 0 ? short(bytes) : '\u2013',
					     this.pixelX(x + 0.5), this.pixelY(y + 0.5));
			}
	}

	// What stands for more than a pair of ranks.
	sharing() {
		const {column_bin: wide, row_bin: high, shared} = this, words = [];
		if (wide * high > 1)
			words.push(`a cell is ${wide} \u00d7 ${high} ranks together`);
		if (shared)
			words.push(`a dot is the busiest of ${shared} cells`);
		return words.join('; ');
	}

	// With fan-out rollouts send, too: behind a line of their own.
	drawForwards(pen, plot) {
		const border = data.plan.trainers / this.column_bin, {x0, x1} = this.view;
		if (border <= x0 || border >= x1)
			return;
		const x = Math.round(this.pixelX(border));
		pen.fillRect(x, plot.top, 1, plot.height);
		pen.fillText('from rollout', x, 12);
	}

	drawAxes(pen, plot) {
		const {x0, x1, y0, y1} = this.view;
		const nameX = (x) => axisName(this.sendersOf(x)[0]);
		const nameY = (y) => axisName(this.receiversOf(y)[0]);
		pen.fillStyle = color('soft');
		pen.textBaseline = 'alphabetic';
		pen.textAlign = 'left';
		pen.fillText('from trainer rank', plot.left, 12);
		this.drawForwards(pen, plot);
		pen.textAlign = 'right';
		pen.fillText(this.sharing(), plot.left + plot.width, 12);
		pen.textAlign = 'center';
		for (const x of steps(x0, x1, plot.width, 44))
			pen.fillText(nameX(x), this.pixelX(x + 0.5), plot.top - 8);
		pen.textAlign = 'right';
		pen.textBaseline = 'middle';
		for (const y of steps(y0, y1, plot.height, 16))
			pen.fillText(nameY(y), plot.left - 8, this.pixelY(y + 0.5));
		pen.save();
		pen.translate(12, plot.top);
		pen.rotate(-Math.PI / 2);
		pen.textAlign = 'right';
		pen.fillText(plot.height > 120 ? 'to rollout replica.rank' : 'to rollout', 0, 0);
		pen.restore();
	}
}

// Which of the cells [low, high) get a label, so that each has `room` pixels: powers of two.
function steps(low, high, pixels, room) {
	let step = 1;
	while (pixels / (high - low) * step < room && step < high)
		step *= 2;
	const list = [];
	for (let at = Math.ceil(low / step) * step; at < high; at += step)
		list.push(at);
	return list;
}

// The legend: the ramp with its ends, what is no traffic, and how it is scaled.
function drawLegend(home, matrix) {
	const {low, least, high} = matrix.scale;
	const canvas = element('canvas', {width: 190, height: 1});
	const pen = canvas.getContext('2d');
	for (let x = 0; x < 190; x++) {
		pen.fillStyle = rgb(ramp(x / 189));
		pen.fillRect(x, 0, 1, 1);
	}
	const middle = short(matrix.scale.value(0.5));
	const text = (words) => element('span', {textContent: words});
	const one = element('i');
	one.style.background = rgb(ramp(matrix.scale.share(high)));
	const more = text(`${short(high)} (half way ${middle})`);
	const ends = high > least ? [text(short(low)), canvas, more] : [one, text(short(high))];
	home.replaceChildren(element('i'), text('nothing\u2002'), ...ends);
}

function showMatrix() {
	const section = document.getElementById('matrix');
	const matrix = new Matrix(section.querySelector('figure'), unpackMatrix(data.matrix));
	const legend = section.querySelector('.scale');
	const redraw = () => {
		drawLegend(legend, matrix);
		matrix.repaint();
	};
	section.hidden = false;
	const scales = ['linear', 'logarithmic'];
	choice(section.querySelector('.choice'), scales, matrix.scale.log ? 1 : 0, (which) => {
		matrix.scale.log = which === 1;
		redraw();
	});
	dark.addEventListener('change', redraw);
	drawLegend(legend, matrix);
	if (matrix.scale.high <= matrix.scale.least)
		section.querySelector('.choice').hidden = true;
	Object.assign(section.dataset, {
		columns: matrix.columns, rows: matrix.rows, cells: matrix.cells.length,
		pairs: matrix.busy.length, bytes: matrix.total,
	});
	showPairs(section.querySelector('details'), matrix);
	matrix.layout();
}
