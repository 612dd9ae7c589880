// Precision against recall, where to cut the scores, and whether scores follow the quality of boxes.

function precisionRecall() {
  const section = byId('precision');
  const { ious } = RUNS[0].pr;
  const classes = [...new Set(RUNS.flatMap((run) => run.classes.map((row) => row.name)))];
  const hidden = new Set();
  let chosen = '';
  const curve = (run, name) =>
    (name === '' ? run.pr.mean : run.pr.classes[run.classes.findIndex((row) => row.name === name)]) || null;
  const line = (run, name, t, look) => {
    const heights = curve(run, name);
    return heights ? { x: run.pr.recall, y: heights[t].map((value) => value / 1000), ...look } : null;
  };

  function series(t) {
    if (MANY)
      return RUNS.map((run, r) =>
        line(run, chosen, t, { name: run.name, color: runColor(r), dash: runDash(r), wide: true }),
      ).filter(Boolean);
    const { colors } = DATA.datasets[RUNS[0].dataset];
    const few = classes.length <= NAMED;
    const each = classes.map((name, label) =>
      line(RUNS[0], name, t, {
        name,
        color: few || name === chosen ? colors[label] : 'var(--muted)',
        unnamed: !few && name !== chosen,
        faint: !few && name !== chosen,
        wide: name === chosen,
      }),
    );
    return [...each, line(RUNS[0], '', t, { name: 'mean', color: 'var(--ink)', wide: chosen === '' })].filter(Boolean);
  }

  const charts = ious.map((iou, t) =>
    lineChart(`IoU ${iou}`, {
      hidden,
      series: () => series(t),
      x: { label: 'recall', min: 0, max: 1 },
      y: { min: 0, max: 1, value: (value) => percent(value) },
    }),
  );
  section.append(
    make(
      'p',
      { class: 'muted' },
      MANY
        ? 'As COCO interpolates it: the mean over the classes, or one class.'
        : 'As COCO interpolates it, for each class and their mean.',
    ),
  );
  if (classes.length > 1) {
    const options = [['', MANY ? 'mean of the classes' : 'mean'], ...classes.map((name) => [name, name])];
    section.append(
      select(MANY ? 'Class' : 'Highlight', options, (name) => {
        chosen = name;
        charts.forEach((chart) => chart.redraw());
      }).node,
    );
  }
  section.append(
    legend(series(0), hidden, () => charts.forEach((chart) => chart.redraw())),
    make(
      'div',
      { class: 'grid' },
      charts.map((chart) => chart.node),
    ),
  );
}

// A slider over the thresholds that make a difference, with what they give.
function thresholdControl(run) {
  const { sweep, summary } = RUNS[run];
  const slider = make('input', {
    type: 'range',
    min: 0,
    max: sweep.scores.length - 1,
    step: 1,
    'aria-label': `Score threshold of ${RUNS[run].name}`,
    style: { 'accent-color': runColor(run) },
    on: { input: () => setCut(run, Number(slider.value)) },
  });
  const readout = make('output', { class: 'readout' });
  const reset = make(
    'button',
    { type: 'button', class: 'plain', on: { click: () => setCut(run, Math.max(0, chosenRow(run))) } },
    'best F1',
  );

  function update() {
    const row = cuts[run];
    slider.value = row;
    const values = [
      ['score', short(sweep.scores[row])],
      ['precision', percent(sweep.precision[row])],
      ['recall', percent(sweep.recall[row])],
      ['F1', percent(sweep.f1[row])],
    ];
    readout.replaceChildren(...values.map(([name, text]) => make('span', {}, `${name} `, make('b', {}, text))));
    slider.setAttribute('aria-valuetext', values.map((pair) => pair.join(' ')).join(', '));
    reset.disabled = sweep.scores[row] === summary.threshold.score;
  }

  onCut(update);
  update();
  return make(
    'div',
    { class: 'threshold' },
    MANY ? runLabel(run) : make('span', {}, 'Threshold'),
    slider,
    reset,
    readout,
  );
}

function sweepChart(run) {
  const { sweep, summary } = RUNS[run];
  const series = [
    ['precision', 'var(--run2)', '7 3'],
    ['recall', 'var(--run3)', '2 3'],
    ['f1', 'var(--ink)', null],
  ].map(([key, color, dash]) => ({
    name: key === 'f1' ? 'F1' : key,
    color,
    dash,
    wide: key === 'f1',
    x: sweep.scores,
    y: sweep[key].map((value) => value ?? 0),
  }));
  const chart = lineChart(
    MANY ? `Precision, recall and F1 of ${RUNS[run].name}` : 'Precision, recall and F1, all classes',
    {
      series: () => series,
      x: { label: 'score threshold' },
      y: { min: 0, max: 1.2, value: (value) => percent(value) }, // the marks' two lines of text stand above the curves
      marks: () =>
        [
          summary.threshold.f1 === null
            ? null
            : {
                x: summary.threshold.score,
                text: `best F1 ${percent(summary.threshold.f1)} at ${short(summary.threshold.score)}`,
                class: 'chosen',
              },
          cutScore(run) === summary.threshold.score
            ? null
            : { x: cutScore(run), text: `now ${short(cutScore(run))}`, row: 1 },
        ].filter(Boolean),
      pick: (value) => setCut(run, nearestIndex(sweep.scores, value)),
    },
  );
  onCut(chart.repaint);
  return make('div', { class: 'card' }, chart.node, thresholdControl(run));
}

// Which part of the objects is found at the threshold, by their size.
function foundBySize() {
  const { limits } = RUNS[0].sweep.sizes;
  const known = [...limits.keys()].filter((size) => RUNS.some(({ sweep }) => sweep.sizes.objects[size]));
  const place = make('div', {});
  const name = (size) => (size + 1 < limits.length ? `${limits[size]} to ${limits[size + 1]}` : `${limits[size]} and more`);
  const share = ({ sizes }, run, size) =>
    sizes.objects[size] ? (100 * sizes.found[size][cuts[run]]) / sizes.objects[size] : null;
  function update() {
    const rows = known.map((size) => [
      name(size),
      whole(RUNS[0].sweep.sizes.objects[size]),
      ...comparedCells(
        RUNS.map((run, r) => share(run.sweep, r, size)),
        1,
        fixed,
      ),
    ]);
    const heads = MANY ? RUNS.map((_, run) => runLabel(run)) : ['recall'];
    place.replaceChildren(
      table('Recall by size, in percent', ['√area, pixels', 'objects', ...heads], rows, { class: 'sizes' }),
    );
  }
  onCut(update);
  update();
  return known.length ? [make('h3', {}, 'Recall by size of the objects, in percent'), place] : [];
}

function thresholds() {
  byId('threshold').append(
    make(
      'div',
      { class: 'grid wide' },
      RUNS.map((_, run) => sweepChart(run)),
    ),
    ...foundBySize(),
  );
}

function scores() {
  byId('scores').append(
    make(
      'div',
      { class: MANY ? 'grid wide' : 'grid half' },
      RUNS.map((run, r) => {
        const facts = COEFFICIENTS.map(([key, name, digits]) => {
          const [value, first] = [run.summary[key] ?? null, RUNS[0].summary[key] ?? null];
          return make(
            'span',
            {},
            `${name} `,
            make('b', {}, fixed(value, digits)),
            ' ',
            comparable(r) && value !== null && first !== null ? change(value - first, digits) : null,
          );
        });
        return make(
          'div',
          { class: 'card' },
          densityChart(r),
          make(
            'p',
            { class: 'readout' },
            facts,
            make('span', { class: 'muted' }, `${whole(run.summary.localised)} detections`),
          ),
        );
      }),
    ),
  );
}
