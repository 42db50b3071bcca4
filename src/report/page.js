/* The page's charts, drawn from the numbers in #points. Without this script the page has the pictures of curves.c; render() replaces
   them, and does so again after the live page has got new parts, so all that a reader has chosen is in `view`. Texts of a run become
   text nodes only. */
'use strict';
const WIDTH = 1000, HEIGHT = 300; // of a drawing, in SVG units
const AXES = {step: 'step', tokens: 'training tokens', time: 'hours since the first step'};
const view = {
    x: null,           // a name of AXES
    range: null,       // [from, to] of the x axis; null: all
    at: null,          // x of the crosshair; null: none
    series: null,      // of the chart that tells the values at the crosshair
    smooth: 1,         // width of the smoothing, in percent of a curve
    log: {},           // series: whether its y axis is logarithmic, if the reader has chosen
    hidden: new Set(), // numbers of runs
    open: new Set(),   // ids of parts that are unfolded on a narrow screen
    sample: null,      // the shown one, counted from the oldest; null: the newest
    sort: null,        // the column by which a list of runs is sorted; null: by name, as it comes
    down: false,       // the largest first
    filter: '',
};
let runs = [];
const drawn = new Map(); // series: {area, lines, x} of its chart
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/* -- Numbers ----------------------------------------------------------------------------------------------------------------- */

function number(value, digits = 5) {
    const units = [[1e12, 1e12, 'T'], [1e9, 1e9, 'B'], [1e6, 1e6, 'M'], [1e4, 1e3, 'k'], [0, 1, '']];
    if (value === null || !isFinite(value)) return 'no value';
    const [, unit, suffix] = units.find(([least]) => Math.abs(value) >= least);
    return +(value / unit).toPrecision(digits) + suffix;
}

/* Round values within an axis: 1, 2 or 5 times a power of ten; on a logarithmic axis over many decades every n-th power. */
function ticks(axis, wanted = 8) {
    const found = [], least = (axis.high - axis.low) / wanted, power = 10 ** Math.floor(Math.log10(least));
    if (axis.log) {
        const decades = Math.log10(axis.high / axis.low), stride = Math.max(1, Math.ceil((decades + 1) / wanted));
        const factors = decades * 6 + 1 <= wanted ? [1, 1.5, 2, 3, 5, 7] : decades * 3 + 1 <= wanted ? [1, 2, 5] : [1];
        for (let p = Math.floor(Math.log10(axis.low)); p <= Math.log10(axis.high); p += stride)
            for (const factor of factors) found.push(factor * 10 ** p);
    }
    const inside = value => value >= axis.low - 1e-9 * least && value <= axis.high + 1e-9 * least;
    if (found.filter(inside).length > 1) return found.filter(inside);
    const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= least * (1 - 1e-9));
    return Array.from({length: wanted + 1}, (_, i) => (Math.ceil(axis.low / step - 1e-9) + i) * step).filter(inside);
}

const is_in = (axis, value) => value >= axis.low && value <= axis.high;
const place = (axis, value) => axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low);

/* Local linear regression with Gaussian weights, as curves.c has it; `width` in points. */
function smoothed(values, width) {
    const reach = Math.ceil(3 * width);
    return values.map((value, i) => {
        let m0 = 0, m1 = 0, m2 = 0, s0 = 0, s1 = 0;
        for (let j = Math.max(0, i - reach); j <= i + reach && j < values.length; j++) {
            if (values[j] === null) continue;
            const d = j - i, w = Math.exp(-0.5 * d * d / (width * width));
            m0 += w, m1 += w * d, m2 += w * d * d, s0 += w * values[j], s1 += w * d * values[j];
        }
        const determinant = m0 * m2 - m1 * m1;
        return value === null ? null : determinant > 1e-9 * m0 * m0 ? (m2 * s0 - m1 * s1) / determinant : s0 / m0;
    });
}

/* The index of the item nearest to x, in increasing numbers. */
function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/* -- Curves ------------------------------------------------------------------------------------------------------------------ */

/* Returns the runs of a <template> that points.c has written. */
function parse(template) {
    const found = template ? JSON.parse(template.content.textContent) : [];
    found.forEach((run, i) => {
        run.number = i;
        run.time = run.time.map(seconds => seconds === null ? null : seconds / 3600);
    });
    return found.filter(run => run.step.length);
}

function read() {
    const before = runs;
    runs = parse(document.querySelector('#points template'));
    for (const run of runs) run.fine = before.find(old => old.number === run.number)?.fine;
}

/* The numbers of a run to draw: those of a zoomed part, if the live page has got them. */
const points = run => view.range && run.fine || run;

/* Returns whether all runs have x values of an axis. */
const has = axis => runs.length > 0 && runs.every(run => run[axis].every(x => x !== null));
const shown = () => runs.filter(run => !view.hidden.has(run.number));
const x_of = (run, step) => view.x === 'step' ? step : points(run)[view.x][nearest(points(run).step, step)];

/* The curve of a run in a chart. `soft`: smoothed. */
function curve(run, series) {
    const style = runs.length > 1 ? 'c' + run.number : series === 'evaluations' ? 'valid' : 'train';
    if (series === 'evaluations') {
        const {evaluations} = points(run), mean = evaluations.map(evaluation => evaluation[1]);
        return {run, style, evaluations, x: evaluations.map(([step]) => x_of(run, step)), mean, soft: mean};
    }
    const [mean, low, high] = points(run).series[series] || [points(run).step.map(() => null)];
    const width = view.smooth / 100 * mean.length, smooth = !/^(lr$|machine_)/.test(series) && mean.length >= 30 && width > 0.3;
    return {run, style, x: points(run)[view.x], mean, low, high, soft: smooth ? smoothed(mean, width) : mean};
}

/* The curves of a chart; its loss has the evaluations of a single run too. */
function curves(series) {
    const found = shown().map(run => curve(run, series));
    return series === 'loss' && runs.length === 1 ? [...found, ...shown().map(run => curve(run, 'evaluations'))] : found;
}

function x_axis() {
    const xs = shown().flatMap(run => [run[view.x][0], run[view.x].at(-1)]), from_zero = view.x !== 'time' && shown().some(run => run.first === 1);
    const [low, high] = view.range || (xs.length ? [from_zero ? 0 : Math.min(...xs), Math.max(...xs)] : [0, 1]);
    return {low, high: high > low ? high : low + 1, log: false};
}

/* The axis that the page was made with, unless the reader has chosen something that changes it: then one that fits what is visible. */
function y_axis(chart, lines, x) {
    const {series, low, high, log} = chart.dataset, untouched = !view.range && view.hidden.size === 0 && view.log[series] === undefined;
    for (const note of all('.cut', chart.parentNode)) note.hidden = !untouched;
    if (untouched) return {low: +low, high: +high, log: log === '1'};
    const seen = lines.flatMap(line => [line.low || line.mean, line.high || line.mean].flatMap(values => values.filter((y, i) => y !== null && is_in(x, line.x[i]))));
    const least = Math.min(...seen), most = Math.max(...seen), logarithmic = (view.log[series] ?? log === '1') && least > 0 && most > least;
    if (!seen.length) return {low: 0, high: 1, log: false};
    if (logarithmic) return {low: least / (most / least) ** 0.05, high: most * (most / least) ** 0.05, log: true};
    const air = 0.05 * (most - least) || Math.abs(most) / 20 || 1;
    return {low: least >= 0 && least < 0.3 * most ? 0 : least - air, high: most + air, log: false};
}

/* -- Drawing ----------------------------------------------------------------------------------------------------------------- */

function add(parent, tag, attributes = {}, text = '') {
    const element = document.createElementNS(parent.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
}

const spot = (x, y, at, value) => `${(WIDTH * place(x, at)).toFixed(1)} ${(HEIGHT * (1 - place(y, value))).toFixed(1)}`;

/* Draws a line with gaps where values are null; a point between gaps becomes a dot. */
function draw_path(svg, style, x, y, line, values) {
    let path = '', dots = '', before = false;
    values.forEach((value, i) => {
        const known = value !== null && line.x[i] !== null;
        if (known && !before && (values[i + 1] ?? null) === null) dots += `M${spot(x, y, line.x[i], value)}h.01`;
        else if (known) path += (before ? 'L' : 'M') + spot(x, y, line.x[i], value);
        before = known;
    });
    add(svg, 'path', {class: 'curve ' + style, d: path});
    if (dots) add(svg, 'path', {class: 'dot ' + style, d: dots});
}

function draw_band(svg, x, y, line) {
    let path = '', back = '';
    for (let i = 0; i <= line.x.length; i++) {
        if (i < line.x.length && line.low[i] !== null) {
            path += (back ? 'L' : 'M') + spot(x, y, line.x[i], line.high[i]);
            back = 'L' + spot(x, y, line.x[i], line.low[i]) + back;
        } else if (back) {
            path += back + 'Z';
            back = '';
        }
    }
    add(svg, 'path', {class: 'band', d: path});
}

/* Draws validation losses, the best one hollow. `inner` cuts off what is beyond the axes. */
function draw_evaluations(svg, inner, x, y, line) {
    const best = Math.min(...line.mean.filter(value => value !== null)), stride = Math.ceil(line.x.filter(at => is_in(x, at)).length / 60);
    draw_path(inner, line.style, x, y, line, line.mean);
    line.mean.forEach((value, i) => {
        if (value === null || (i % stride && value > best) || !is_in(x, line.x[i]) || !is_in(y, value)) return;
        for (const style of ['ring', line.style, ...(value > best ? [] : ['best'])]) add(svg, 'path', {class: 'dot ' + style, d: `M${spot(x, y, line.x[i], value)}h.01`});
    });
}

function draw_labels(element, axis, side) {
    element.replaceChildren();
    for (const tick of ticks(axis)) {
        const percent = 100 * place(axis, tick);
        add(element, 'span', {}, number(tick, 6)).style[side] = (side === 'top' ? 100 - percent : percent) + '%';
    }
}

function draw(chart) {
    const series = chart.dataset.series, lines = curves(series), x = x_axis(), y = y_axis(chart, lines, x), svg = chart.querySelector('svg');
    svg.replaceChildren();
    add(svg, 'path', {class: 'grid', d: ticks(y).map(tick => `M0 ${HEIGHT * (1 - place(y, tick))}H${WIDTH}`).join('')});
    const inner = add(svg, 'svg', {width: WIDTH, height: HEIGHT});
    for (const line of lines) {
        if (line.evaluations) draw_evaluations(svg, inner, x, y, line);
        else {
            if (line.low) draw_band(inner, x, y, line);
            if (runs.length === 1 && line.soft !== line.mean) draw_path(inner, 'raw', x, y, line, line.mean);
            draw_path(inner, line.style, x, y, line, line.soft);
        }
    }
    for (const [step, style, from, to] of runs.length === 1 && series === 'loss' ? runs[0].events : []) {
        const at = WIDTH * place(x, x_of(runs[0], step));
        add(inner, 'path', {class: 'stroke ' + style, d: `M${at} ${HEIGHT * (1 - from)}V${HEIGHT * (1 - to)}`});
    }
    draw_labels(chart.querySelector('.ylabels'), y, 'top');
    draw_labels(chart.querySelector('.xlabels'), x, 'left');
    chart.querySelector('.xtitle').textContent = AXES[view.x];
    const area = chart.querySelector('.area') || add(chart, 'div', {id: 'area-' + series, class: 'area', tabindex: 0, role: 'slider',
        'aria-label': svg.getAttribute('aria-label') + ': arrow keys move, plus and minus zoom, 0 shows all'});
    drawn.set(series, {area, lines, x});
}

function draw_all() {
    drawn.clear();
    if (runs.length) all('.chart[data-series]').forEach(draw);
    tell_all();
}

/* -- The crosshair ----------------------------------------------------------------------------------------------------------- */

/* What a chart says at the crosshair: [[style, text], ...]. */
function values_at(lines, x) {
    const said = [], near = 0.008 * (x.high - x.low), alone = runs.length === 1;
    for (const line of lines) {
        const i = nearest(line.x, view.at);
        if (!line.x.length || (alone && line.evaluations && Math.abs(line.x[i] - view.at) > near)) continue;
        const range = line.low && line.low[i] !== null ? ` (${number(line.low[i], 4)} to ${number(line.high[i], 4)})` : '';
        const name = alone ? '' : line.run.name.slice(0, 40) + ' ', step = line.evaluations ? `validation after step ${line.evaluations[i][0]}: ` : '';
        said.push([line.style, name + step + number(line.mean[i]) + range]);
    }
    const events = alone ? runs[0].events.filter(([step]) => Math.abs(x_of(runs[0], step) - view.at) < near) : [];
    return [...said, ...events.slice(0, 6).map(([, style, , , text]) => [style, text])];
}

function head_at(run) {
    if (runs.length > 1) return `${number(view.at)} ${AXES[view.x]}`;
    const {step, tokens, time, first: begin, [view.x]: xs} = points(run), i = nearest(xs, view.at), first = i > 0 ? step[i - 1] + 1 : begin;
    return [first < step[i] ? `steps ${first}\u2013${step[i]}` : `step ${step[i]}`, has('tokens') && number(tokens[i], 4) + ' tokens',
        has('time') && number(time[i], 3) + ' h'].filter(Boolean).join(', ');
}

/* Shows crosshair, values and selection in a chart. */
function tell(series, {area, lines, x}) {
    const chosen = view.series === series;
    area.replaceChildren();
    area.setAttribute('aria-valuemin', x.low);
    area.setAttribute('aria-valuemax', x.high);
    area.setAttribute('aria-valuenow', Math.min(Math.max(view.at ?? x.high, x.low), x.high));
    area.setAttribute('aria-valuetext', 'no value chosen');
    if (chosen && selection.from !== null && selection.to !== null) {
        const {style} = add(area, 'div', {class: 'selection'});
        style.left = 100 * Math.min(selection.from, selection.to) + '%';
        style.width = 100 * Math.abs(selection.to - selection.from) + '%';
    }
    if (view.at === null || !is_in(x, view.at) || !lines.length) return;
    const part = place(x, view.at), said = values_at(lines, x), head = head_at(lines[0].run);
    area.setAttribute('aria-valuetext', [head, ...said.map(([, text]) => text)].join('; '));
    add(area, 'div', {class: 'cross'}).style.left = 100 * part + '%';
    if (!chosen) return;
    const box = add(area, 'div', {class: 'readout'});
    box.style[part < 0.5 ? 'left' : 'right'] = `calc(${100 * (part < 0.5 ? part : 1 - part)}% + 12px)`;
    add(box, 'b', {}, head);
    for (const [style, text] of said) {
        const row = add(box, 'div');
        add(row, 'i', {class: 'k-' + style});
        add(row, 'span', {}, text);
    }
}

const tell_all = () => drawn.forEach((chart, series) => tell(series, chart));

/* Moves the crosshair to the nearest point of the first run. */
function point_at(x) {
    const xs = shown()[0] && points(shown()[0])[view.x];
    view.at = xs ? xs[nearest(xs, x)] : null;
}

/* -- Zoom -------------------------------------------------------------------------------------------------------------------- */

/* Returns whether the finer points of a run reach over the zoomed part. */
function covers(run) {
    const xs = run.fine[view.x], whole = run[view.x];
    return view.range && xs[0] <= Math.max(view.range[0], whole[0]) && xs.at(-1) >= Math.min(view.range[1], whole.at(-1));
}

let later = 0;
function zoom(from, to) {
    view.range = null;
    const whole = x_axis(), span = Math.min(to - from, whole.high - whole.low), low = Math.min(Math.max(from, whole.low), whole.high - span);
    const least = (whole.high - whole.low) / (fetch_points ? 1e5 : 500);
    if (span < (whole.high - whole.low) * 0.999) view.range = [low, low + Math.max(span, least)];
    for (const run of runs) if (run.fine && !covers(run)) run.fine = null;
    draw_all();
    clearTimeout(later);
    later = setTimeout(refine, 150);
}

/* The step at an x value, between two points of a run. */
function step_at(run, x) {
    const xs = run[view.x], i = Math.max(1, xs.findIndex(value => value >= x)), [a, b] = [xs[i - 1], xs[i] ?? xs[i - 1]];
    return run.step[i - 1] + (b > a ? (x - a) / (b - a) * (run.step[i] - run.step[i - 1]) : 0);
}

/* Gets more points for a zoomed part. watch.js sets the function: (from, to) => a promise of runs; a page in a file has no more. */
let fetch_points = null, asked = 0;
async function refine() {
    const mine = ++asked;
    if (!view.range || !fetch_points) return;
    const [low, high] = view.range, air = 0.1 * (high - low), of_runs = shown();
    const from = Math.max(1, Math.floor(Math.min(...of_runs.map(run => step_at(run, low - air))))), to = Math.ceil(Math.max(...of_runs.map(run => step_at(run, high + air))));
    const gains = run => run.step.length < run.step.at(-1) - run.first + 1 && to - from < (run.step.at(-1) - run.first) / 2;
    if (!of_runs.some(gains)) return;
    const found = await fetch_points(from, to).catch(() => []);
    if (mine !== asked) return;
    for (const run of runs) run.fine = found.find(one => one.number === run.number);
    draw_all();
}

function zoom_around(center, factor) {
    const {low, high} = x_axis();
    zoom(center - (center - low) * factor, center + (high - center) * factor);
}

/* The mouse selects a range, or moves it with shift; one finger moves the crosshair, and two zoom and move. */
const held = new Map(); // pointerId: {part: of the chart's width, x: the value that was there at first}
const selection = {from: null, to: null};
const area_of = event => event.target instanceof Element ? event.target.closest('.area') : null;
const value_at = part => x_axis().low + part * (x_axis().high - x_axis().low);

function part_of(area, event) {
    const box = area.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
}

addEventListener('pointerdown', event => {
    const area = area_of(event);
    if (!area || event.button) return;
    const part = part_of(area, event), mouse = event.pointerType === 'mouse';
    held.set(event.pointerId, {part, x: value_at(part)});
    view.series = area.parentNode.dataset.series;
    selection.from = mouse && !event.shiftKey ? part : null;
    if (!mouse) point_at(value_at(part)), tell_all();
});

addEventListener('pointermove', event => {
    const area = area_of(event), finger = held.get(event.pointerId), mouse = event.pointerType === 'mouse';
    if (!area) {
        if (mouse && !finger && view.at !== null && !document.activeElement?.matches('.area')) view.at = null, tell_all();
        return;
    }
    if (finger && mouse && !event.buttons) return release(event, false); // the button was released elsewhere
    const part = part_of(area, event), {low, high} = x_axis();
    if (finger) finger.part = part;
    view.series = area.parentNode.dataset.series;
    const [one, other] = held.values(), apart = other ? other.part - one.part : 0;
    const span = Math.abs(apart) > 0.02 ? (other.x - one.x) / apart : finger && mouse && selection.from === null ? high - low : 0;
    if (span > 0) return zoom(one.x - one.part * span, one.x + (1 - one.part) * span);
    point_at(value_at(part));
    selection.to = part;
    tell_all();
});

function release(event, zooms) {
    if (!held.delete(event.pointerId) || selection.from === null) return;
    const {from, to} = selection;
    selection.from = selection.to = null;
    if (zooms && to !== null && Math.abs(to - from) > 0.01) zoom(value_at(Math.min(from, to)), value_at(Math.max(from, to)));
    else tell_all();
}

addEventListener('pointerup', event => release(event, true));
addEventListener('pointercancel', event => release(event, false));

addEventListener('wheel', event => {
    const area = area_of(event);
    if (!area || !event.ctrlKey) return;
    event.preventDefault();
    zoom_around(value_at(part_of(area, event)), Math.exp(event.deltaY / 200));
}, {passive: false});

addEventListener('dblclick', event => area_of(event) && zoom(-Infinity, Infinity));
document.documentElement.addEventListener('pointerleave', () => {
    if (!document.activeElement?.matches('.area')) view.at = null, tell_all();
});

addEventListener('keydown', event => {
    const area = area_of(event), run = shown()[0];
    if (!area || !run || event.ctrlKey || event.metaKey || event.altKey) return;
    const {low, high} = x_axis(), xs = points(run)[view.x], i = nearest(xs, view.at ?? high), far = event.shiftKey ? 20 : 1;
    const after = count => xs[Math.min(Math.max(i + count, 0), xs.length - 1)];
    const moves = {ArrowLeft: after(-far), ArrowRight: after(far), PageDown: after(-20), PageUp: after(20), Home: run[view.x][0], End: run[view.x].at(-1)};
    view.series = area.parentNode.dataset.series;
    if (event.key in moves) {
        const span = high - low;
        view.at = moves[event.key];
        if (view.range && view.at < low) zoom(view.at, view.at + span);
        else if (view.range && view.at > high) zoom(view.at - span, view.at);
    } else if ('+=-'.includes(event.key)) zoom_around(view.at ?? (low + high) / 2, event.key === '-' ? 1.5 : 1 / 1.5);
    else if (event.key === '0' || event.key === 'Escape') zoom(-Infinity, Infinity);
    else return;
    event.preventDefault();
    tell_all();
});

/* -- The page ---------------------------------------------------------------------------------------------------------------- */

const bar = document.createElement('nav');
bar.innerHTML = '<div class="links"></div><div class="controls"><label>x <select id="axis"></select></label>' +
    '<label>smooth <input type="range" id="smooth" min="0" max="10" step="0.5"></label>' +
    '<button type="button" id="whole">show all</button></div>';
bar.setAttribute('aria-label', 'Contents');

function render_bar() {
    const links = bar.querySelector('.links'), heads = all('main > div[id]').map(part => [part.id, part.querySelector('h2')]).filter(([, head]) => head);
    if (!runs.length) return bar.remove();
    if (!bar.isConnected) document.querySelector('main').prepend(bar);
    links.replaceChildren();
    for (const [id, head] of heads) add(links, 'a', {href: '#' + id}, head.firstChild.textContent);
    const axis = bar.querySelector('#axis');
    if (!axis.options.length) {
        for (const name of Object.keys(AXES).filter(has)) add(axis, 'option', {value: name}, name);
        view.x = document.querySelector('.xtitle')?.textContent === AXES.tokens ? 'tokens' : 'step';
        axis.value = view.x;
        bar.querySelector('#smooth').value = view.smooth;
    }
    axis.parentNode.parentNode.hidden = !document.querySelector('.chart[data-series]');
}

/* A box for the scale of each chart, and one to show each run. */
function render_boxes() {
    for (const chart of all('.chart[data-series]')) {
        const head = chart.parentNode.querySelector('.head'), {series, log} = chart.dataset;
        const box = head.querySelector('.log input') || add(add(head, 'label', {class: 'log'}), 'input', {type: 'checkbox', id: 'log-' + series, 'data-log': series});
        if (!box.nextSibling) box.after(' log scale');
        box.checked = view.log[series] ?? log === '1';
        head.querySelector('small')?.remove();
    }
    all('[data-shown]').forEach(label => {
        const box = label.querySelector('input') || document.createElement('input');
        box.type = 'checkbox';
        box.id = 'shown-' + label.dataset.shown;
        box.checked = !view.hidden.has(+label.dataset.shown);
        label.prepend(box);
    });
}

/* -- Loads of experts -------------------------------------------------------------------------------------------------------- */

/* A cell is a character (load_map.c): its level is 30 at an even share, and 15 more for each factor of 2. */
const LEVELS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxy', EVEN = 30;

function paint_maps() {
    const style = getComputedStyle(document.documentElement);
    const colors = Array.from({length: 11}, (_, i) => style.getPropertyValue('--h' + i).match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16)));
    for (const canvas of all('canvas[data-load]')) {
        const context = canvas.getContext('2d'), image = context.createImageData(canvas.width, canvas.height);
        [...canvas.dataset.load].forEach((character, i) => {
            const at = LEVELS.indexOf(character) / (2 * EVEN) * (colors.length - 1), low = Math.floor(at), high = Math.ceil(at);
            for (let part = 0; part < 3; part++) image.data[4 * i + part] = colors[low][part] + (at - low) * (colors[high][part] - colors[low][part]);
            image.data[4 * i + 3] = 255;
        });
        context.putImageData(image, 0, 0);
    }
}

/* Tells the load of a cell in the head of its map. */
function tell_cell(canvas, column, expert) {
    const steps = canvas.closest('.maps').dataset.steps.split(','), {width, height, dataset} = canvas;
    column = Math.min(Math.max(column, 0), width - 1), expert = Math.min(Math.max(expert, 0), height - 1);
    dataset.column = column, dataset.expert = expert;
    const level = LEVELS.indexOf(dataset.load[expert * width + column]), ratio = (2 ** ((level - EVEN) / (EVEN / 2))).toFixed(2);
    const beyond = level === 0 ? '\u2264 ' : level === 2 * EVEN ? '\u2265 ' : '';
    canvas.parentNode.querySelector('p').textContent = `${canvas.closest('.maps').dataset.row} ${expert}, steps ${steps[column]}\u2013${steps[column + 1] - 1}: ${beyond}${ratio}\u00d7`;
}

for (const name of ['pointermove', 'pointerdown']) addEventListener(name, event => {
    const canvas = event.target.closest?.('canvas[data-load]'), box = canvas?.getBoundingClientRect();
    if (box) tell_cell(canvas, Math.floor((event.clientX - box.left) / box.width * canvas.width), Math.floor((event.clientY - box.top) / box.height * canvas.height));
});

addEventListener('keydown', event => {
    const canvas = event.target.closest?.('canvas[data-load]'), move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!canvas || !move) return;
    event.preventDefault();
    tell_cell(canvas, +(canvas.dataset.column ?? canvas.width) + move[0], +(canvas.dataset.expert ?? 0) + move[1]);
});

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint_maps);

/* -- Samples and folded parts ------------------------------------------------------------------------------------------------ */

/* One sample at a time, with a slider over the evaluations; without the script all are in a table. */
function render_samples() {
    const rows = all('#samples tr').reverse(), head = document.querySelector('#samples h2');
    if (rows.length < 2) return;
    const slider = document.querySelector('#sample') || add(head.parentNode, 'input', {type: 'range', id: 'sample', min: 0, 'aria-label': 'Evaluation of the sample'});
    head.parentNode.insertBefore(slider, document.querySelector('#samples table'));
    slider.max = rows.length - 1;
    slider.value = view.sample ?? rows.length - 1;
    rows.forEach((row, i) => row.hidden = i !== +slider.value);
    slider.setAttribute('aria-valuetext', rows[slider.value].querySelector('th').textContent);
}

/* Sorts and filters the list of a folder's runs. Cells without a value come last. */
function render_list() {
    const body = document.querySelector('.index tbody'), filter = document.querySelector('#filter');
    if (!body) return;
    const rows = [...body.rows], key = row => row.cells[view.sort].dataset.value ?? row.cells[view.sort].textContent;
    const order = (a, b) => a - b || a.localeCompare(b, 'en', {numeric: true}); // numbers by value, other texts by their letters
    if (view.sort !== null) rows.sort((a, b) => (key(a) === '') - (key(b) === '') || order(key(a), key(b)) * (view.down ? -1 : 1));
    body.append(...rows);
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(view.filter.toLowerCase());
    all('[data-sort]').forEach((button, i) => button.parentNode.ariaSort = view.sort !== i ? 'none' : view.down ? 'descending' : 'ascending');
    if (filter.value !== view.filter) filter.value = view.filter;
}

/* On a narrow screen (page.css) these parts are folded. */
function render_folds() {
    for (const id of ['load', 'layers', 'data', 'settings', 'changes', 'starts', 'log', 'summary']) {
        const section = document.querySelector(`#${id} section`), open = view.open.has(id);
        if (!section) continue;
        const button = section.querySelector('.fold') || add(section.querySelector('h2'), 'button', {type: 'button', id: 'fold-' + id, class: 'fold', 'data-fold': id});
        button.textContent = open ? 'hide' : 'show';
        button.setAttribute('aria-expanded', open);
        section.classList.toggle('folded', !open);
    }
    const head = document.querySelector('#summary .head');
    if (head && !head.querySelector('#copy')) add(head, 'button', {type: 'button', id: 'copy'}, 'copy');
}

function render() {
    read();
    render_bar();
    render_boxes();
    render_samples();
    render_list();
    paint_maps();
    render_folds();
    draw_all();
    refine();
}

/* Replaces parts of the live page (watch.js): {id: HTML}. What had the focus gets it again. */
function replace_parts(parts) {
    const focused = document.activeElement?.id;
    for (const [id, html] of Object.entries(parts)) document.getElementById(id).innerHTML = html;
    render();
    if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

addEventListener('input', event => {
    const {id, dataset, value, checked} = event.target;
    if (id === 'axis') view.x = value, zoom(-Infinity, Infinity), view.at = null;
    else if (id === 'smooth') view.smooth = +value;
    else if (id === 'filter') return view.filter = value, render_list();
    else if (id === 'sample') return view.sample = +value === +event.target.max ? null : +value, render_samples();
    else if (dataset.log) view.log[dataset.log] = checked;
    else if (event.target.closest('[data-shown]')) view.hidden[checked ? 'delete' : 'add'](+event.target.closest('[data-shown]').dataset.shown);
    else return;
    draw_all();
});

/* Without a clipboard, the text is selected. */
async function copy(button) {
    const text = document.querySelector('#summary pre');
    try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = 'copied';
    } catch {
        getSelection().selectAllChildren(text);
        button.textContent = 'selected: copy it by Ctrl-C';
    }
}

addEventListener('click', event => {
    if (event.target.id === 'whole') zoom(-Infinity, Infinity);
    if (event.target.id === 'copy') copy(event.target);
    const {fold, sort} = event.target.dataset, part = event.target.closest('nav a')?.hash.slice(1);
    if (sort) view.down = view.sort === +sort && !view.down, view.sort = +sort, render_list();
    if (fold) view.open[view.open.has(fold) ? 'delete' : 'add'](fold);
    if (part) view.open.add(part);
    if (fold || part) render_folds();
});
document.readyState === 'loading' ? addEventListener('DOMContentLoaded', render) : render();
