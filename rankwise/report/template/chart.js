// Line charts as SVG: axes, lines, a cursor for pointer, finger and arrow keys, and a legend that hides lines.

const HEIGHT = 236;
const NAMED = 12; // with more lines than this, only the nearest is named at the cursor

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

// Axes on an empty SVG; returns the scales.
function frame(svg, width, xAxis, yAxis) {
  const yTicks = ticks(yAxis.min, yAxis.max, 5);
  const format = (axis) => axis.format || short;
  const left = 14 + 6.4 * Math.max(...yTicks.map((tick) => format(yAxis)(tick).length));
  const [right, top, bottom] = [width - 14, 10, HEIGHT - 38];
  const x = (value) => left + ((value - xAxis.min) / (xAxis.max - xAxis.min || 1)) * (right - left);
  const y = (value) => bottom - ((value - yAxis.min) / (yAxis.max - yAxis.min || 1)) * (bottom - top);
  svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute('height', HEIGHT);
  const axes = draw('g', { class: 'axes', 'aria-hidden': 'true' });
  for (const tick of yTicks) {
    axes.append(
      draw('line', { x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      draw('text', { x: left - 7, y: y(tick) + 4, 'text-anchor': 'end' }, format(yAxis)(tick)),
    );
  }
  for (const tick of ticks(xAxis.min, xAxis.max, Math.max(2, Math.floor((right - left) / 60)))) {
    const text = format(xAxis)(tick);
    const inside = Math.min(x(tick), width - 3.4 * text.length); // so that the last label is not cut off
    axes.append(
      draw('line', { class: 'minor', x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }),
      draw('text', { x: inside, y: bottom + 17, 'text-anchor': 'middle' }, text),
    );
  }
  axes.append(
    draw('line', { class: 'base', x1: left, x2: right, y1: bottom, y2: bottom }),
    draw('text', { class: 'label', x: right, y: HEIGHT - 4, 'text-anchor': 'end' }, xAxis.label),
  );
  svg.append(axes);
  return {
    x,
    y,
    left,
    right,
    top,
    bottom,
    value: (pixel) => xAxis.min + ((pixel - left) / (right - left)) * (xAxis.max - xAxis.min),
  };
}

// Redraws when the width changes, for example when a phone is rotated.
function redrawOnResize(figure, redraw) {
  let width = 0;
  new ResizeObserver(() => {
    if (figure.clientWidth && figure.clientWidth !== width) {
      width = figure.clientWidth;
      redraw();
    }
  }).observe(figure);
}

// The legend: a button per line that shows and hides it.
function legend(series, hidden, redraw) {
  const named = series.filter((line) => !line.unnamed);
  if (named.length < 2) return '';
  return make(
    'div',
    { class: 'legend' },
    named.map((line) =>
      make(
        'button',
        {
          type: 'button',
          'aria-pressed': 'true',
          title: 'show or hide',
          on: {
            click(event) {
              if (!hidden.delete(line.name)) hidden.add(line.name);
              event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(line.name)));
              redraw();
            },
          },
        },
        swatch(line.color, line.dash),
        line.name,
      ),
    ),
  );
}

// series(): [{name, color, dash, wide, faint, x, y}]; x and y: axes {label, min, max, format}; marks(): vertical lines
// [{x, text}]; pick(x): called with the x of a click or drag; hidden: names of hidden lines, if charts share a legend.
function lineChart(title, spec) {
  const hidden = spec.hidden || new Set();
  const svg = draw('svg', {
    class: spec.pick ? 'plot pick' : 'plot',
    role: 'img',
    tabindex: '0',
    'aria-label': `${title}. Arrow keys ${spec.pick ? 'move the threshold' : 'read the values'}.`,
  });
  const figure = make('figure', { class: 'chart' }, make('figcaption', {}, title), svg);
  let scale = null;
  let cursor = null;
  let at = null; // x of the cursor

  const seen = () => spec.series().filter((line) => line.x.length && !hidden.has(line.name));

  function axis(given, values) {
    const low = given.min ?? Math.min(...values);
    const high = given.max ?? Math.max(...values);
    return { ...given, min: low, max: high > low ? high : low + (Math.abs(low) || 1) };
  }

  function redraw() {
    svg.replaceChildren();
    const lines = seen();
    const all = lines.length ? lines : spec.series();
    const xs = all.flatMap((line) => line.x);
    const ys = all.flatMap((line) => line.y);
    const yAxis = axis({ ...spec.y, max: spec.y.max ?? 1.04 * Math.max(...ys, 0) }, ys);
    scale = frame(svg, figure.clientWidth || 320, axis(spec.x, xs), yAxis);
    for (const line of [...lines.filter((l) => l.faint), ...lines.filter((l) => !l.faint)]) {
      const points = line.x.map((value, i) => `${scale.x(value).toFixed(1)},${scale.y(line.y[i]).toFixed(1)}`);
      const classes = `line${line.wide ? ' wide' : ''}${line.faint ? ' faint' : ''}`;
      svg.append(
        draw('polyline', {
          class: classes,
          points: points.join(' '),
          'stroke-dasharray': line.dash,
          style: { '--c': line.color },
        }),
      );
      if (line.x.length <= 12 && !line.faint) {
        line.x.forEach((value, i) =>
          svg.append(
            draw('circle', {
              class: 'dot',
              cx: scale.x(value),
              cy: scale.y(line.y[i]),
              r: 3,
              style: { '--c': line.color },
            }),
          ),
        );
      }
    }
    for (const mark of spec.marks ? spec.marks() : []) {
      const x = scale.x(mark.x);
      const end = x > (scale.left + scale.right) / 2;
      svg.append(
        draw('line', { class: `mark ${mark.class || ''}`, x1: x, x2: x, y1: scale.top, y2: scale.bottom }),
        draw(
          'text',
          {
            class: 'mark-text',
            x: x + (end ? -6 : 6),
            y: scale.top + 10 + (mark.row || 0) * 15,
            'text-anchor': end ? 'end' : 'start',
          },
          mark.text,
        ),
      );
    }
    cursor = svg.appendChild(draw('g', { class: 'cursor', 'aria-hidden': 'true' }));
  }

  function read(value, nearY, clientX, clientY) {
    let found = seen().map((line) => ({ line, i: nearestIndex(line.x, value) }));
    if (!found.length) return;
    at = found
      .map(({ line, i }) => line.x[i])
      .reduce((best, x) => (Math.abs(x - value) < Math.abs(best - value) ? x : best));
    const span = (spec.x.max ?? Math.max(...found.map(({ line }) => line.x.at(-1)))) - (spec.x.min ?? 0);
    found = found.filter(({ line, i }) => Math.abs(line.x[i] - at) <= span / 40);
    if (found.length > NAMED) {
      const far = ({ line, i }) => Math.abs(scale.y(line.y[i]) - nearY);
      found = [found.reduce((best, one) => (far(one) < far(best) ? one : best))];
    }
    const x = scale.x(at);
    cursor.replaceChildren(
      draw('line', { x1: x, x2: x, y1: scale.top, y2: scale.bottom }),
      ...found.map(({ line, i }) =>
        draw('circle', { cx: scale.x(line.x[i]), cy: scale.y(line.y[i]), r: 4, style: { '--c': line.color } }),
      ),
    );
    const box = svg.getBoundingClientRect();
    tip.show(clientX ?? box.left + x, clientY ?? box.top + 40, [
      [make('b', {}, `${spec.x.label} ${(spec.x.format || short)(at)}`)],
      ...found.map(({ line, i }) => [
        swatch(line.color, line.dash),
        `${line.name} `,
        make('b', {}, (spec.y.value || spec.y.format || short)(line.y[i])),
      ]),
    ]);
  }

  function leave() {
    at = null;
    cursor?.replaceChildren();
    tip.hide();
  }

  function point(event) {
    const box = svg.getBoundingClientRect();
    const value = scale.value(event.clientX - box.left);
    if (spec.pick && event.buttons) spec.pick(value);
    read(value, event.clientY - box.top, event.clientX, event.clientY);
  }

  follow(svg, point, leave);
  svg.addEventListener('blur', leave);
  svg.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === 'Escape') leave();
    const lines = seen();
    if (!step || !lines.length) return;
    event.preventDefault();
    const longest = lines.reduce((best, line) => (line.x.length > best.x.length ? line : best));
    const i = at === null ? (step > 0 ? 0 : longest.x.length - 1) : nearestIndex(longest.x, at) + step;
    const value = longest.x[Math.min(longest.x.length - 1, Math.max(0, i))];
    read(value, 0);
    if (spec.pick) spec.pick(value);
  });
  if (!spec.hidden) figure.append(legend(spec.series(), hidden, redraw));
  redrawOnResize(figure, redraw);
  return {
    node: figure,
    redraw: () => {
      leave();
      redraw();
    },
    repaint: redraw,
  };
}
