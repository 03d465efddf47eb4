// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together.

function put(id, text) {
	const element = document.getElementById(id);
	element.textContent = text;
	return element;
}

function showHeader() {
	const {trainer, rollout, replicas, findings} = data;
	const side = (of, word) => `${plural(of.ranks, word)} (${of.framework})`;
	const copies = replicas && replicas.length > 1 ? `${replicas.length} replicas of ` : '';
	put('model', (rollout || trainer || {model: 'Refused'}).model);
	put('sides', trainer && rollout
		? `${side(trainer, 'trainer')} \u2192 ${copies}${side(rollout, 'rollout rank')}` : data.reason);
	put('verdict', data.plan ? 'Every byte of every rollout parameter is written exactly once.'
				 : `Refused: ${plural(findings.count, 'fault')}.`)
		.classList.toggle('refused', !data.plan);
}

function showFigures() {
	const {plan, simulation} = data;
	const add = (name, value, more) => {
		const box = document.createElement('div');
		for (const [tag, text] of [['dt', name], ['dd', value], ['dd', more]])
			box.append(Object.assign(document.createElement(tag), {textContent: text}));
		document.getElementById('figures').append(box);
	};
	const busiest = ({bytes_max: max, bytes_mean: mean, count}, word) =>
		`${times(max, mean)} \u00d7 the mean of ${plural(count, word)}`;
	add('Bytes of one update', short(plan.total_bytes), `${exact(plan.total_bytes)} bytes`);
	if (simulation)
		add('Simulated update', seconds(simulation.predicted_s), `${simulation.ratio < 100 ? simulation.ratio.toFixed(3) : exact(simulation.ratio)} \u00d7 the floor`);
	add('Busiest sender', short(plan.senders.bytes_max), busiest(plan.senders, 'trainer'));
	add('Busiest receiver', short(plan.receivers.bytes_max), busiest(plan.receivers, 'rollout rank'));
	add('Idle senders', exact(plan.senders_idle), `of ${plural(plan.trainers, 'trainer')}`);
	add('Writes', exact(plan.ops), `${short(plan.total_bytes / plan.ops)} on average, in ${plural(plan.pairs, 'pair')}`);
}

// ---- Contiguity.

const shapes = [
	['both', 'at both ends', 'written as it lies', 0.0],
	['target_only', 'at the rollout only', 'the trainer packs', 0.4],
	['source_only', 'at the trainer only', 'long runs are written one by one, short ones unpacked by the rollout', 0.7],
	['none', 'at neither end', 'the trainer packs, the rollout unpacks', 1.0],
];

function showShapes() {
	const section = document.getElementById('shapes');
	const {contiguity, boxes, runs} = data.plan;
	const table = section.querySelector('table'), stack = section.querySelector('.stack');
	const paint = () => {
		stack.replaceChildren();
		shapes.forEach(([key, , , share], i) => {
			const swatch = table.rows[i + 1].cells[0].querySelector('i');
			swatch.style.background = rgb(ramp(1 - share * 0.8));
			if (contiguity[key] === 0)
				return;
			const part = document.createElement('i');
			part.style.flexGrow = contiguity[key];
			part.style.background = swatch.style.background;
			part.title = `${shapes[i][1]}: ${plural(contiguity[key], 'box')}`;
			stack.append(part);
		});
	};
	fillTable(table, ['contiguous', '#boxes', '#share', 'how'],
		  shapes.map(([key, where, how]) => [where, exact(contiguity[key]), percent(contiguity[key], boxes), how])
			.concat([['all', exact(boxes), '', `${exact(runs)} runs`]]));
	shapes.forEach((_, i) => table.rows[i + 1].cells[0].prepend(document.createElement('i'), ' '));
	paint();
	dark.addEventListener('change', paint);
	section.hidden = false;
}

function showPage() {
	document.querySelector('main').hidden = false;
	showHeader();
	showFindings('findings', data.findings);
	if (data.plan) {
		showFigures();
		showFindings('warnings', data.warnings);
		showMatrix();
		showNics();
		if (data.simulation)
			showTimeline();
		showShapes();
		showBuckets();
		put('made', `Plan ${data.plan.digest}, made in ${data.plan.plan_seconds.toFixed(3)} s by weightsync ${data.version}.`);
		document.getElementById('keys').hidden = false;
	}
	document.body.dataset.shown = 'yes';
}

showPage();
