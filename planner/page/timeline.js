// SPDX-License-Identifier: Apache-2.0
//
// The simulation: a lane for each rank, its phases over time in their colours, and the floors that
// no plan of these bytes can beat.  A cell of the chart is one rank in one tick of time.

// Colours of Okabe and Ito, and of Tol: told apart by everybody.
const phaseColors = {
	begin: '#888888', load: '#cc79a7', gather: '#882255', amax: '#ddcc77',
	exchange: '#e69f00', convert: '#d55e00', write: '#0072b2', forward: '#009e73',
	receive: '#56b4e9', unpack: '#aa4499', wait: '#bbbbbb',
};

// The lanes of planner/page_timeline.c: by member, by phase, runs of ticks equally busy.
function unpackLanes(packed, members) {
	const number = numbers(packed);
	const runs = () => {
		const list = [];
		for (let left = number(), end = 0; left > 0; left--) {
			const begin = end + number(), token = number();
			end = begin + Math.floor(token / 4);
			list.push({begin, end, level: token % 4});
		}
		return list;
	};
	return Array.from({length: members}, () =>
		Array.from({length: number()}, () => ({phase: number(), runs: runs()})));
}

const onNics = ['write', 'forward', 'receive'];
const levels = [
	{},
	{alpha: 0.3, words: ' (busy less than a third)'},
	{alpha: 0.6, words: ' (busy in part)'},
	{alpha: 1, words: ''},
];

class Timeline extends Chart {
	constructor(figure, simulation) {
		super(figure, simulation.ticks, data.plan.members, 'Point to a lane to read it.');
		Object.assign(this.margin, {top: 46, bottom: 26});
		this.simulation = simulation;
		this.lanes = unpackLanes(simulation.lanes, data.plan.members);
		this.hidden = new Set(); // phases
		this.present = simulation.phases.filter((_, phase) =>
			this.lanes.some((lane) => lane.some((part) => part.phase === phase)));
	}

	size(width) {
		return {width, height: Math.min(this.whole.y1 * 26, 540)};
	}

	// Ticks are too small to be stepped through one by one.
	stepX() {
		return Math.max(1, Math.round((this.view.x1 - this.view.x0) / 200));
	}

	timeOf(tick) {
		return tick / this.simulation.ticks * this.simulation.predicted_s;
	}

	tickOf(time) {
		return time / this.simulation.predicted_s * this.simulation.ticks;
	}

	shown(y) {
		const {phases} = this.simulation;
		return this.lanes[y].map(({phase, runs}) => ({name: phases[phase], runs}))
			.filter(({name}) => !this.hidden.has(name))
			.sort((a, b) => onNics.includes(a.name) - onNics.includes(b.name));
	}

	read(x, y) {
		const {end_s: end, floor_s: floor} = this.simulation;
		const now = this.shown(y).flatMap(({name, runs}) => {
			const run = runs.find(({begin, end: until}) => begin <= x && x < until);
			return run ? [name + levels[run.level].words] : [];
		});
		const time = seconds(this.timeOf(x), 6);
		return `${memberName(y)} at ${time}: ${now.join(', ') || 'idle'}; ` +
		       `done at ${seconds(end[y])}, its NICs need ${seconds(floor[y])}`;
	}

	draw(pen, plot) {
		this.painted ||= this.paint();
		pen.drawImage(this.painted, plot.left, plot.top, plot.width, plot.height);
		this.drawAxes(pen, plot);
		this.drawFloors(pen, plot);
	}

	// Lanes with room for it have a band for each phase; in thin ones what NICs do lies on top.
	paint() {
		const wide = Math.round(this.plot.width * this.ratio);
		const high = Math.round(this.plot.height * this.ratio);
		const canvas = element('canvas', {width: wide, height: high});
		const pen = canvas.getContext('2d'), {x0, x1, y0, y1} = this.view;
		const scale = wide / (x1 - x0), lane = high / (y1 - y0);
		const gap = lane > 12 ? Math.round(lane / 8) : 0;
		for (let y = y0; y < y1; y++) {
			const parts = this.shown(y), top = Math.floor((y - y0) * lane);
			const room = Math.max(1, Math.floor((y + 1 - y0) * lane) - top - gap);
			const band = room >= 4 * parts.length ? Math.floor(room / parts.length) : 0;
			parts.forEach(({name, runs}, nth) => {
				pen.fillStyle = phaseColors[name];
				this.paintRuns(pen, runs, scale, top + band * nth, band || room);
			});
		}
		return canvas;
	}

	paintRuns(pen, runs, scale, top, height) {
		const {x0, x1} = this.view;
		for (const {begin, end, level} of runs) {
			if (end <= x0 || begin >= x1)
				continue;
			const left = Math.floor((begin - x0) * scale);
			const width = Math.max(1, Math.ceil((end - x0) * scale) - left);
			pen.clearRect(left, top, width, height); // colours don't mix
			pen.globalAlpha = levels[level].alpha;
			pen.fillRect(left, top, width, height);
		}
	}

	drawAxes(pen, plot) {
		const {x0, x1, y0, y1} = this.view;
		pen.fillStyle = color('line');
		pen.fillRect(plot.left, plot.top + plot.height, plot.width, 1);
		pen.fillStyle = color('soft');
		pen.textAlign = 'center';
		pen.textBaseline = 'top';
		const list = ticks(this.timeOf(x0), this.timeOf(x1), plot.width / 90);
		for (const time of list) {
			const x = this.pixelX(this.tickOf(time)), foot = plot.top + plot.height;
			pen.fillRect(x, foot, 1, 4);
			pen.fillText(tickSeconds(time, list), x, foot + 7);
		}
		pen.textAlign = 'right';
		pen.textBaseline = 'middle';
		for (const y of steps(y0, y1, plot.height, 16))
			pen.fillText(memberName(y), plot.left - 8, this.pixelY(y + 0.5));
		const border = data.plan.trainers;
		if (y0 < border && border < y1) {
			pen.fillStyle = color('ink');
			pen.fillRect(plot.left, Math.round(this.pixelY(border)), plot.width, 1);
		}
	}

	// Two floors and the end, each with its words on a line of its own above the lanes.
	drawFloors(pen, plot) {
		const played = this.simulation;
		const lines = [
			['send floor', played.send_floor_s, [2, 3]],
			['receive floor', played.receive_floor_s, [7, 3]],
			['done', played.predicted_s, []],
		];
		lines.forEach(([name, time, dash], nth) => {
			const tick = this.tickOf(time);
			if (tick < this.view.x0 || tick > this.view.x1)
				return;
			const edge = plot.left + plot.width - 1;
			const x = Math.min(Math.round(this.pixelX(tick)), edge) + 0.5;
			const top = plot.top - 34 + 13 * nth, right = x < plot.left + 180;
			pen.strokeStyle = color('ink');
			pen.setLineDash(dash);
			pen.beginPath();
			pen.moveTo(x, top - 6);
			pen.lineTo(x, plot.top + plot.height);
			pen.stroke();
			pen.setLineDash([]);
			pen.textAlign = right ? 'left' : 'right';
			pen.textBaseline = 'middle';
			rimmedText(pen, `${name} ${seconds(time)}`, x + (right ? 6 : -6), top);
		});
	}
}

// As many digits as the ticks are apart.
function tickSeconds(time, list) {
	const [factor, unit] = list.at(-1) < 0.1 ? [1000, 'ms'] : [1, 's'];
	const apart = list.length > 1 ? (list[1] - list[0]) * factor : 1;
	const digits = Math.max(0, Math.ceil(-Math.log10(apart) - 1e-9));
	return `${(time * factor).toFixed(digits)}\u00a0${unit}`;
}

// The legend is also a choice: phases can be left out.
function showPhases(home, timeline) {
	for (const name of timeline.present) {
		const label = element('label'), swatch = element('i');
		const input = element('input', {type: 'checkbox', checked: true});
		swatch.style.background = phaseColors[name];
		input.addEventListener('change', () => {
			timeline.hidden[input.checked ? 'delete' : 'add'](name);
			timeline.repaint();
		});
		label.append(input, swatch, name);
		home.append(label);
	}
}

function showTimeline() {
	const section = document.getElementById('timeline');
	const timeline = new Timeline(section.querySelector('figure'), data.simulation);
	section.hidden = false;
	showPhases(section.querySelector('.choice'), timeline);
	dark.addEventListener('change', () => timeline.repaint());
	later(section.querySelector('details'), (table) => {
		const {end_s: end, floor_s: floor} = data.simulation;
		const time = (tick) => seconds(timeline.timeOf(tick));
		const spans = (y) => timeline.shown(y).map(({name, runs}) =>
			`${name} ${time(runs[0].begin)} to ${time(runs.at(-1).end)}`).join(', ');
		const rows = timeline.lanes.map((_, y) =>
			[memberName(y), seconds(end[y]), seconds(floor[y]), spans(y)]);
		fillTable(table, ['rank', '#done at', '#NICs need', 'from first to last'], rows);
	});
	section.dataset.predicted = data.simulation.predicted_s;
	section.dataset.lanes = timeline.lanes.length;
	timeline.layout();
}
