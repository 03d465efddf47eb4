// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together.

function put(id, text) {
	return Object.assign(document.getElementById(id), {textContent: text});
}

function showHeader() {
	const {trainer, rollout, replicas, findings} = data;
	const side = (of, word) => `${plural(of.ranks, word)} (${of.framework})`;
	const copies = replicas && replicas.length > 1 ? `${replicas.length} replicas of ` : '';
	put('model', (rollout || trainer || {model: 'Refused'}).model);
	put('sides', !trainer || !rollout ? data.reason
		: `${side(trainer, 'trainer')} \u2192 ${copies}${side(rollout, 'rollout rank')}`);
	put('verdict', data.plan ? 'Every byte of every rollout parameter is written exactly once.'
				 : `Refused: ${plural(findings.count, 'fault')}.`)
		.classList.toggle('refused', !data.plan);
}

function showFigures() {
	const {plan, simulation} = data;
	const add = (name, value, more) => {
		const box = element('div');
		for (const [tag, text] of [['dt', name], ['dd', value], ['dd', more]])
			box.append(element(tag, {textContent: text}));
		document.getElementById('figures').append(box);
	};
	const busiest = ({bytes_max: max, bytes_mean: mean, count}, word) =>
		`${times(max, mean)} \u00d7 the mean of ${plural(count, word)}`;
	add('Bytes of one update', short(plan.total_bytes), `${exact(plan.total_bytes)} bytes`);
	if (simulation)
		add('Simulated update', seconds(simulation.predicted_s),
		    `${simulation.ratio.toPrecision(4)} \u00d7 the floor`);
	add('Busiest sender', short(plan.senders.bytes_max), busiest(plan.senders, 'trainer'));
	add('Busiest receiver', short(plan.receivers.bytes_max),
	    busiest(plan.receivers, 'rollout rank'));
	add('Idle senders', exact(plan.senders_idle), `of ${plural(plan.trainers, 'trainer')}`);
	add('Writes', brief(plan.ops),
	    `${short(plan.total_bytes / plan.ops)} on average, in ${plural(plan.pairs, 'pair')}`);
}

// ---- Contiguity.

const shapes = [
	['both', 'at both ends', 'written as it lies', 0.0],
	['target_only', 'at the rollout only', 'the trainer packs', 0.4],
	['source_only', 'at the trainer only',
	 'long runs are written one by one, short ones unpacked by the rollout', 0.7],
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
			const part = element('i', {title: `${shapes[i][1]}: ${rows[i][1]} boxes`});
			part.style.flexGrow = contiguity[key];
			part.style.background = swatch.style.background;
			stack.append(part);
		});
	};
	const rows = shapes.map(([key, where, how]) =>
		[where, exact(contiguity[key]), percent(contiguity[key], boxes), how]);
	rows.push(['all', exact(boxes), '', `${exact(runs)} runs`]);
	fillTable(table, ['contiguous', '#boxes', '#share', 'how'], rows);
	shapes.forEach((_, i) => table.rows[i + 1].cells[0].prepend(element('i'), ' '));
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
		const {warnings} = data.plan;
		const list = warnings.map(({kind, where, text}) => [kind, where, text, 0]);
		showFindings('warnings', {count: list.length, list});
		showMatrix();
		showNics();
		if (data.simulation)
			showTimeline();
		showShapes();
		showBuckets();
		const {digest, plan_seconds: took} = data.plan;
		const by = `by weightsync ${data.version}`;
		put('made', `Plan ${digest}, made in ${seconds(took)} ${by}.`);
		document.getElementById('keys').hidden = false;
	}
	document.body.dataset.shown = 'yes';
}

showPage();
