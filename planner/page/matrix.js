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
		const low = this.busy.reduce((a, b) => Math.min(a, b), Infinity);
		const high = this.busy.reduce((a, b) => Math.max(a, b), 0);
		this.scale = new Scale(low, high, high / low > 20);
		this.total = this.busy.reduce((a, b) => a + b, 0);
	}

	size(width) {
		return {width: Math.min(width, this.whole.x1 * 96),
			height: Math.min(Math.max(540, this.whole.y1 <= 640 ? this.whole.y1 : 0), this.whole.y1 * 40)};
	}

	// ---- Members behind the cells.

	sendersOf(x) {
		const first = x * this.column_bin;
		return [first, Math.min(this.column_bin, this.matrixMembers('columns') - first)];
	}

	receiversOf(y) {
		const first = y * this.row_bin;
		return [this.row_first + first, Math.min(this.row_bin, this.matrixMembers('rows') - first)];
	}

	matrixMembers(side) {
		return data.matrix[side];
	}

	read(x, y) {
		const bytes = this.cells[y * this.columns + x];
		const pair = `${memberSpan(...this.sendersOf(x))} \u2192 ${memberSpan(...this.receiversOf(y))}`;
		if (bytes === 0)
			return `${pair}: nothing`;
		const from = places[this.sendersOf(x)[0]].host, to = places[this.receiversOf(y)[0]].host;
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
		const canvas = Object.assign(document.createElement('canvas'), {width: wide, height: high});
		canvas.getContext('2d').putImageData(image, 0, 0);
		return canvas;
	}

	// Lines between hosts where there is room for them, between replicas always.
	drawGrid(pen, plot) {
		const cellWidth = plot.width / (this.view.x1 - this.view.x0);
		const cellHeight = plot.height / (this.view.y1 - this.view.y0);
		pen.fillStyle = color('card');
		for (let x = this.view.x0 + 1; x < this.view.x1; x++)
			if (cellWidth >= 8 || (cellWidth >= 1.5 && this.hostBegins(this.sendersOf(x)[0])))
				pen.fillRect(this.pixelX(x) - 0.5, plot.top, 1, plot.height);
		for (let y = this.view.y0 + 1; y < this.view.y1; y++) {
			const first = this.receiversOf(y)[0], replica = this.replicaBegins(first);
			if (replica && cellHeight >= 0.5)
				pen.fillRect(plot.left, this.pixelY(y) - 1, plot.width, 2);
			else if (cellHeight >= 8 || (cellHeight >= 1.5 && this.hostBegins(first)))
				pen.fillRect(plot.left, this.pixelY(y) - 0.5, plot.width, 1);
		}
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
				pen.fillStyle = bytes > 0 ? inkOn(ramp(this.scale.share(bytes))) : color('soft');
				pen.fillText(bytes > 0 ? short(bytes) : '\u2013',
					     (this.pixelX(x) + this.pixelX(x + 1)) / 2,
					     (this.pixelY(y) + this.pixelY(y + 1)) / 2);
			}
	}

	drawAxes(pen, plot) {
		const {x0, x1, y0, y1} = this.view;
		const nameX = (x) => axisName(this.sendersOf(x)[0]), nameY = (y) => axisName(this.receiversOf(y)[0]);
		pen.fillStyle = color('soft');
		pen.textBaseline = 'alphabetic';
		pen.textAlign = 'left';
		pen.fillText('from trainer rank', plot.left, 12);
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
	const {low, high} = matrix.scale;
	const canvas = Object.assign(document.createElement('canvas'), {width: 190, height: 1});
	const pen = canvas.getContext('2d');
	for (let x = 0; x < 190; x++) {
		pen.fillStyle = rgb(ramp(x / 189));
		pen.fillRect(x, 0, 1, 1);
	}
	const middle = short(matrix.scale.value(0.5));
	const text = (words) => Object.assign(document.createElement('span'), {textContent: words});
	const one = document.createElement('i');
	one.style.background = rgb(ramp(matrix.scale.share(low)));
	home.replaceChildren(document.createElement('i'), text('nothing\u2002'), ...high > low
		? [text(short(low)), canvas, text(`${short(high)} (half way ${middle})`)]
		: [one, text(short(low))]);
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
	choice(section.querySelector('.choice'), ['linear', 'logarithmic'], matrix.scale.log ? 1 : 0, (which) => {
		matrix.scale.log = which === 1;
		redraw();
	});
	dark.addEventListener('change', redraw);
	drawLegend(legend, matrix);
	if (matrix.scale.high <= matrix.scale.low)
		section.querySelector('.choice').hidden = true;
	Object.assign(section.dataset, {columns: matrix.columns, rows: matrix.rows, cells: matrix.cells.length,
					pairs: matrix.busy.length, bytes: matrix.total});
	showPairs(section.querySelector('details'), matrix);
	matrix.layout();
}
