// SPDX-License-Identifier: Apache-2.0
//
// From numbers to colours: viridis, whose lightness rises evenly, so that it reads without hue
// (colour-blind eyes, grey prints).  More is what stands out more: darker on a light page, lighter
// on a dark one.

const viridis = [
	[68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140],
	[34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37],
];

const dark = matchMedia('(prefers-color-scheme: dark)');

// A colour of the style sheet: ink, soft, line, ...
function color(name) {
	return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// 0..1 to [red, green, blue].
function ramp(share) {
	const at = (dark.matches ? share : 1 - share) * (viridis.length - 1);
	const low = Math.min(Math.floor(at), viridis.length - 2);
	const mix = (from, to) => Math.round(from + (to - from) * (at - low));
	return viridis[low].map((from, i) => mix(from, viridis[low + 1][i]));
}

function rgb([red, green, blue]) {
	return `rgb(${red},${green},${blue})`;
}

// Black or white, whichever is read on the colour.
function inkOn([red, green, blue]) {
	return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? '#000' : '#fff';
}

// Where a value stands: linear from nothing, so that what is nearly equal looks so, or by its
// logarithm from the least.
class Scale {
	constructor(least, high, log) {
		Object.assign(this, {least, high, log});
	}

	get low() {
		return this.log ? this.least : 0;
	}

	share(value) {
		if (this.high <= this.least)
			return 0.75;
		return this.log ? Math.log(value / this.low) / Math.log(this.high / this.low)
				: (value - this.low) / (this.high - this.low);
	}

	value(share) {
		return this.log ? this.low * (this.high / this.low) ** share
				: this.low + (this.high - this.low) * share;
	}
}
