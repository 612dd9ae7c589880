// Precision and recall, thresholds, and score against IoU.

function precisionRecall() {
  const section = byId('precision');
  const { ious } = RUNS[0].pr;
  const classes = [...new Set(RUNS.flatMap((run) => run.classes.map((row) => row.name)))];
  const hidden = new Set();
  let chosen = '';
  const curve = (run, name) =>
    (name === '' ? run.pr.mean : run.pr.classes[run.classes.findIndex((row) => row.name === name)]) || null;
  const line = (run, name, t, style) => {
    const heights = curve(run, name);
    return heights ? { x: run.pr.recall, y: heights[t].map((value) => value / 1000), ...style } : null;
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
        ? 'Precision as interpolated by COCO: the mean over the classes, or one class.'
        : 'Precision as interpolated by COCO, for each class and as mean.',
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

// A slider over the thresholds, with precision, recall and F1.
function thresholdControl(run) {
  const { sweep, summary } = RUNS[run];
  const slider = make('input', {
    type: 'range',
    min: 0,
    max: sweep.scores.length - 1,
    step: 1,
    'aria-label': `Score threshold of ${RUNS[run].name}`,
    style: { 'accent-color': runColor(run) },
    on: { input: () => setThresholdRow(run, Number(slider.value)) },
  });
  const readout = make('output', { class: 'readout' });
  const reset = make(
    'button',
    { type: 'button', class: 'plain', on: { click: () => setThresholdRow(run, Math.max(0, bestRow(run))) } },
    'best F1',
  );

  function update() {
    const row = thresholdRows[run];
    slider.value = row;
    const values = [
      ['threshold', short(sweep.scores[row])],
      ['precision', percent(sweep.precision[row])],
      ['recall', percent(sweep.recall[row])],
      ['F1', percent(sweep.f1[row])],
    ];
    readout.replaceChildren(...values.map(([name, text]) => make('span', {}, `${name} `, make('b', {}, text))));
    slider.setAttribute('aria-valuetext', values.map((pair) => pair.join(' ')).join(', '));
    reset.disabled = sweep.scores[row] === summary.threshold.score;
  }

  onThresholdChange(update);
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
      y: { min: 0, max: 1.2, value: (value) => percent(value) }, // room for two lines of text above the curves
      marks: () =>
        [
          summary.threshold.f1 === null
            ? null
            : {
                x: summary.threshold.score,
                text: `best F1 ${percent(summary.threshold.f1)} at ${short(summary.threshold.score)}`,
                class: 'chosen',
              },
          thresholdOf(run) === summary.threshold.score
            ? null
            : { x: thresholdOf(run), text: `selected ${short(thresholdOf(run))}`, row: 1 },
        ].filter(Boolean),
      pick: (value) => setThresholdRow(run, nearestIndex(sweep.scores, value)),
    },
  );
  onThresholdChange(chart.repaint);
  return make('div', { class: 'card' }, chart.node, thresholdControl(run));
}

// Recall by object size, at the selected threshold.
function recallBySize() {
  const { limits } = RUNS[0].sweep.sizes;
  const known = [...limits.keys()].filter((size) => RUNS.some(({ sweep }) => sweep.sizes.objects[size]));
  const container = make('div', {});
  const name = (size) => (size + 1 < limits.length ? `${limits[size]} to ${limits[size + 1]}` : `${limits[size]} or more`);
  const share = ({ sizes }, run, size) =>
    sizes.objects[size] ? (100 * sizes.found[size][thresholdRows[run]]) / sizes.objects[size] : null;
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
    container.replaceChildren(
      table('Recall by object size, in percent', ['√area, pixels', 'objects', ...heads], rows, { class: 'sizes' }),
    );
  }
  onThresholdChange(update);
  update();
  return known.length ? [make('h3', {}, 'Recall by object size, in percent'), container] : [];
}

function thresholds() {
  byId('threshold').append(
    make(
      'div',
      { class: 'grid wide' },
      RUNS.map((_, run) => sweepChart(run)),
    ),
    ...recallBySize(),
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
            make('span', { class: 'muted' }, `${whole(run.summary.localized)} detections`),
          ),
        );
      }),
    ),
  );
}
