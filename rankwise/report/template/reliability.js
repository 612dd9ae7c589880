// The fraction of correct detections by score: on the diagonal, scores are probabilities.

function reliabilityChart(run) {
  const { reliability } = RUNS[run];
  const line = (key, style) => ({
    x: reliability[key].bins.map((row) => row[0]),
    y: reliability[key].bins.map((row) => row[1]),
    ...style,
  });
  const series = () => [
    { name: 'perfect calibration', color: 'var(--muted)', dash: '2 3', x: [0, 1], y: [0, 1] },
    line('raw', { name: 'raw scores', color: 'var(--run2)', dash: '7 3' }),
    line('calibrated', { name: 'calibrated scores', color: runColor(run), wide: true }),
  ];
  const hidden = new Set();
  const chart = lineChart(MANY ? `Reliability of ${RUNS[run].name}` : 'Fraction of correct detections', {
    hidden,
    series,
    x: { label: 'score', min: 0, max: 1 },
    y: { min: 0, max: 1, value: (value) => percent(value) },
  });
  const facts = ['raw', 'calibrated'].map((key) =>
    make(
      'span',
      {},
      `${key} `,
      make('b', {}, fixed(reliability[key].ece, 3)),
      ` (LaECE ${fixed(reliability[key].laece, 3)})`,
    ),
  );
  return make(
    'div',
    { class: 'card' },
    chart.node,
    legend(series(), hidden, () => chart.redraw()),
    make('p', { class: 'readout' }, 'Calibration error (ECE): ', facts),
  );
}

function reliabilities() {
  const section = byId('reliability');
  const known = RUNS.map((_, run) => run).filter((run) => RUNS[run].reliability);
  if (!known.length) {
    section.hidden = true;
    return;
  }
  section.append(make('div', { class: MANY ? 'grid wide' : 'grid half' }, known.map(reliabilityChart)));
}
