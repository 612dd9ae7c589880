// A two-dimensional histogram of score and IoU, with the quartiles of the score.

const CELLS = 28;

function densityChart(run) {
  const { density } = RUNS[run];
  const svg = draw('svg', {
    class: 'plot',
    role: 'img',
    'aria-label': `Scores of ${RUNS[run].name} against IoU, ${whole(RUNS[run].summary.localized)} detections`,
  });
  const figure = make(
    'figure',
    { class: 'chart' },
    make('figcaption', {}, MANY ? runLabel(run) : 'Detections with IoU above 0.5'),
    svg,
  );
  const most = Math.max(1, ...density.cells.map((cell) => cell[2]));
  const counts = new Map(density.cells.map(([column, row, count]) => [column * CELLS + row, count]));
  const height = (density.high - density.low) / CELLS;
  let scale = null;
  let hover = null;

  function redraw() {
    svg.replaceChildren();
    scale = frame(
      svg,
      figure.clientWidth || 320,
      { label: 'IoU with the object', min: 0.5, max: 1 },
      { min: density.low, max: density.high },
    );
    const [w, h] = [(scale.right - scale.left) / CELLS, (scale.bottom - scale.top) / CELLS];
    for (const [column, row, count] of density.cells) {
      svg.append(
        draw('rect', {
          class: 'cell',
          x: scale.left + column * w,
          y: scale.bottom - (row + 1) * h,
          width: w + 0.3,
          height: h + 0.3,
          'fill-opacity': 0.16 + 0.8 * (Math.log(count + 0.3) / Math.log(most + 0.3)),
          style: { '--c': runColor(run) },
        }),
      );
    }
    for (const [quartile, wide] of [
      [1, false],
      [2, true],
      [3, false],
    ]) {
      const points = density.quartiles.map((row) => `${scale.x(row[0])},${scale.y(row[quartile])}`).join(' ');
      svg.append(draw('polyline', { class: `quartile${wide ? ' wide' : ''}`, points }));
    }
    hover = svg.appendChild(draw('rect', { class: 'cell-hover', width: w, height: h, visibility: 'hidden' }));
  }

  function point(event) {
    const box = svg.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - scale.left) / (scale.right - scale.left)) * CELLS);
    const row = Math.floor(((scale.bottom - (event.clientY - box.top)) / (scale.bottom - scale.top)) * CELLS);
    if (column < 0 || row < 0 || column >= CELLS || row >= CELLS) return leave();
    const [w, h] = [(scale.right - scale.left) / CELLS, (scale.bottom - scale.top) / CELLS];
    hover.setAttribute('x', scale.left + column * w);
    hover.setAttribute('y', scale.bottom - (row + 1) * h);
    hover.setAttribute('visibility', 'visible');
    const iou = 0.5 + column / (2 * CELLS);
    const score = density.low + row * height;
    return tip.show(event.clientX, event.clientY, [
      [make('b', {}, whole(counts.get(column * CELLS + row) || 0)), ' detections'],
      `IoU ${iou.toFixed(2)} to ${(iou + 0.5 / CELLS).toFixed(2)}`,
      `score ${short(score)} to ${short(score + height)}`,
    ]);
  }

  function leave() {
    hover.setAttribute('visibility', 'hidden');
    tip.hide();
  }

  follow(svg, point, leave);
  redrawOnResize(figure, redraw);
  return figure;
}
