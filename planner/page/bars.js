// SPDX-License-Identifier: Apache-2.0
//
// Bars against their mean: bytes per NIC at both ends, and bytes per bucket.  Where there are more
// bars than pixels, a pixel is filled up to the least of its bars and shaded up to the most.

class Bars extends Chart {
	constructor(figure, values, read, name) {
		super(figure, values.length, 1, 'Point to a bar to read it.');
		this.values = values;
		this.read = read;
		this.name = name; // of a bar, on the axis
		this.least = leastOf(values);
		this.most = mostOf(values);
		this.mean = sumOf(values) / values.length;
		this.fromZero = true;
	}

	size(width) {
		return {width: Math.min(width, this.whole.x1 * 96), height: 150};
	}

	// What the axis goes from and to.
	range() {
		if (this.fromZero || this.least === this.most)
			return [0, (this.most || 1) * 1.12];
		const pad = (this.most - this.least) * 0.12;
		return [Math.max(0, this.least - pad), this.most + pad];
	}

	pixelOf(value) {
		const [low, high] = this.range();
		return this.plot.top + (1 - (value - low) / (high - low)) * this.plot.height;
	}

	draw(pen, plot) {
		this.drawTicks(pen, plot);
		pen.save();
		pen.beginPath();
		pen.rect(plot.left, plot.top, plot.width, plot.height);
		pen.clip();
		this.drawBars(pen, plot);
		pen.restore();
		this.drawMean(pen, plot);
		this.drawNames(pen, plot);
	}

	drawTicks(pen, plot) {
		pen.textAlign = 'right';
		pen.textBaseline = 'middle';
		for (const value of ticks(...this.range(), 4)) {
			const y = Math.round(this.pixelOf(value)) + 0.5;
			pen.fillStyle = color('line');
			pen.fillRect(plot.left, y - 0.5, plot.width, 1);
			pen.fillStyle = color('soft');
			pen.fillText(tickName(value, this.most), plot.left - 8, y);
		}
	}

	// Narrow bars stand pixel by pixel of the screen, so that none is blurred; those that
	// share a pixel are shaded from the least to the most.
	drawBars(pen, plot) {
		const {x0, x1} = this.view, count = x1 - x0, bar = plot.width / count;
		const pixels = Math.round(plot.width * this.ratio);
		if (bar > 6)
			return this.drawWideBars(pen, bar > 24 ? 8 : 1);
		for (let pixel = 0; pixel < pixels; pixel++) {
			const first = Math.floor(pixel * count / pixels);
			const end = Math.max(first + 1, Math.floor((pixel + 1) * count / pixels));
			const shared = this.values.subarray(x0 + first, x0 + end);
			const least = leastOf(shared), most = mostOf(shared);
			const left = (Math.round(plot.left * this.ratio) + pixel) / this.ratio;
			if (most > least)
				this.drawBar(pen, left, 1 / this.ratio, most, 0.45);
			this.drawBar(pen, left, 1 / this.ratio, least, 1);
		}
	}

	drawWideBars(pen, gap) {
		for (let x = this.view.x0; x < this.view.x1; x++) {
			const left = this.pixelX(x) + gap / 2, right = this.pixelX(x + 1) - gap / 2;
			this.drawBar(pen, left, right - left, this.values[x], 1);
		}
	}

	// Blue up to the mean, vermilion above it.
	drawBar(pen, left, width, value, alpha) {
		const foot = this.plot.top + this.plot.height;
		const mean = this.pixelOf(Math.min(value, this.mean));
		pen.globalAlpha = alpha;
		pen.fillStyle = color('base');
		pen.fillRect(left, mean, width, foot - mean);
		pen.fillStyle = color('over');
		if (value > this.mean)
			pen.fillRect(left, this.pixelOf(value), width, mean - this.pixelOf(value));
		pen.globalAlpha = 1;
	}

	drawMean(pen, plot) {
		const y = Math.round(this.pixelOf(this.mean)) + 0.5;
		pen.strokeStyle = color('ink');
		pen.setLineDash([5, 3]);
		pen.beginPath();
		pen.moveTo(plot.left, y);
		pen.lineTo(plot.left + plot.width, y);
		pen.stroke();
		pen.setLineDash([]);
		this.drawMeanName(pen, plot, `mean ${short(this.mean)}`, y);
	}

	// Beside the bars where these are few, else on them, with a rim.
	drawMeanName(pen, plot, words, y) {
		const beside = this.figure.clientWidth - plot.left - plot.width > 130;
		const x = plot.left + plot.width + (beside ? 6 : -4);
		pen.textAlign = beside ? 'left' : 'right';
		pen.textBaseline = beside ? 'middle' : 'bottom';
		rimmedText(pen, words, x, beside ? y : Math.max(y - 3, plot.top + 12));
	}

	drawNames(pen, plot) {
		pen.fillStyle = color('soft');
		pen.textAlign = 'center';
		pen.textBaseline = 'top';
		const foot = plot.top + plot.height + 6;
		for (const x of steps(this.view.x0, this.view.x1, plot.width, 56))
			pen.fillText(this.name(x), this.pixelX(x + 0.5), foot);
	}
}

// On an axis whose largest value is `most`: round numbers need no digits.
function tickName(value, most) {
	return value === 0 ? '0' : short(value).replace(/\.?0+(?=\u00a0)/, '');
}

// ---- NICs.

// Bytes of each NIC of members [first, end), and whose it is.
function nicsOf(bytes, first, end) {
	const owners = [], values = [];
	for (let member = first; member < end; member++)
		for (let nic = 0; nic < places[member].nics; nic++) {
			owners.push({member, nic});
			values.push(bytes[member] / places[member].nics);
		}
	return {owners, values: Float64Array.from(values)};
}

function readNic({member, nic}, bytes, mean) {
	const {host, nics, mbps} = places[member];
	const which = nics > 1 ? `, NIC ${nic} of ${nics}` : '';
	const speed = mbps / nics; // mbps is that of all its NICs
	const time = speed > 0
		? `; ${seconds(bytes * 8 / speed / 1e6)} at ${speed / 1000} Gb/s` : '';
	return `${memberName(member)}${which}${host ? ` on host ${host}` : ''}: ${both(bytes)}, ` +
	       `${times(bytes, mean)} times the mean${time}`;
}

// Members [first, end) as bars of the figure with this id.
function showSide(id, bytes, first, end) {
	const {owners, values} = nicsOf(bytes, first, end);
	const figure = document.getElementById(id);
	const read = (x) => readNic(owners[x], values[x], chart.mean);
	const chart = new Bars(figure, values, read, (x) => axisName(owners[x].member));
	Object.assign(figure.dataset, {
		bars: values.length, least: chart.least, most: chart.most,
		bytes: sumOf(bytes.slice(first, end)),
	});
	return chart;
}

function showNics() {
	const section = document.getElementById('nics');
	const {trainers, members} = data.plan;
	const senders = Math.max(trainers, lastBusy(data.nic_sent) + 1);
	const charts = [
		showSide('senders', data.nic_sent, 0, senders),
		showSide('receivers', data.nic_received, trainers, members),
	];
	const few = charts.every((chart) => chart.values.length <= FEW / 2);
	section.hidden = false;
	section.querySelector('.figures').classList.toggle('beside', few);
	choice(section.querySelector('.choice'), ['from zero', 'around the mean'], 0, (which) => {
		for (const chart of charts) {
			chart.fromZero = which === 0;
			chart.repaint();
		}
	});
	dark.addEventListener('change', () => charts.forEach((chart) => chart.repaint()));
	showMembers(section.querySelector('details'));
	charts.forEach((chart) => chart.layout());
}

// Rollout ranks that forward to other hosts are senders too.
function lastBusy(bytes) {
	return bytes.findLastIndex((n) => n > 0);
}

// ---- Buckets.

function showBuckets() {
	const section = document.getElementById('buckets');
	const buckets = data.buckets;
	const read = (x) => {
		const [name, bytes, tensors] = buckets[x];
		return `bucket ${x}, ${name}: ${both(bytes)}, ${plural(tensors, 'tensor')}`;
	};
	const values = Float64Array.from(buckets, ([, bytes]) => bytes);
	const chart = new Bars(section.querySelector('figure'), values, read, String);
	section.hidden = false;
	chart.layout();
	section.dataset.bytes = sumOf(values);
	dark.addEventListener('change', () => chart.repaint());
	later(section.querySelector('details'), (table) => {
		const rows = buckets.map(([name, bytes, tensors], i) =>
			[i, name, exact(tensors), exact(bytes)]);
		fillTable(table, ['#bucket', 'name', '#tensors', '#bytes'], rows);
	});
}
