// The main findings, the COCO metrics, and the classes.

const MEASURES = [
  ['ap', 'AP', 1],
  ['ap50', 'AP50', 1],
  ['ap75', 'AP75', 1],
  ['aps', 'AP small', 1],
  ['apm', 'AP medium', 1],
  ['apl', 'AP large', 1],
];
const COEFFICIENTS = [
  ['pcc', 'PCC', 3],
  ['scc', 'SCC', 3],
  ['kcc', 'KCC', 3],
];

function best(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length > 1 && Math.min(...known) < Math.max(...known) ? Math.max(...known) : null;
}

// The cells of a row for all runs: the value and its difference from the first run; the best value is bold.
function comparedCells(values, digits, write) {
  const rounded = values.map((value) => (value === null ? null : Number(value.toFixed(digits))));
  const top = RUNS.every((_, run) => run === 0 || comparable(run)) ? best(rounded) : null;
  return values.map((value, run) => {
    const text = make(value !== null && rounded[run] === top ? 'b' : 'span', {}, write(value, digits));
    const known = comparable(run) && value !== null && values[0] !== null;
    return known ? [text, ' ', change(value - values[0], digits)] : text;
  });
}

function cocoTable() {
  const rows = [...MEASURES, ...COEFFICIENTS].map(([key, name, digits]) => [
    name,
    ...comparedCells(
      RUNS.map((run) => run.summary[key] ?? null),
      digits,
      fixed,
    ),
  ]);
  const threshold = ['f1', 'precision', 'recall'].map((key) => [
    key === 'f1' ? 'best F1' : `${key} at best F1`,
    ...comparedCells(
      RUNS.map(({ summary }) => (summary.threshold[key] === null ? null : 100 * summary.threshold[key])),
      1,
      fixed,
    ),
  ]);
  const counts = ['images', 'objects', 'detections'].map((key) => [key, ...RUNS.map((run) => whole(run.summary[key]))]);
  return table(
    'COCO metrics in percent, correlations of score and IoU, and the best threshold',
    ['', ...RUNS.map((_, run) => runLabel(run))],
    [...rows, ...threshold, ...counts],
    { class: 'coco' },
  );
}

function tiles() {
  const { summary } = RUNS[0];
  const tile = ([key, name, digits]) =>
    make(
      'div',
      { class: key === 'ap' ? 'tile main' : 'tile' },
      make('dd', {}, fixed(summary[key] ?? null, digits)),
      make('dt', {}, name),
    );
  const threshold = make(
    'div',
    { class: 'tile' },
    make('dd', {}, fixed(summary.threshold.f1 === null ? null : 100 * summary.threshold.f1)),
    make('dt', {}, 'best F1'),
  );
  return make('dl', { class: 'tiles' }, [...MEASURES, ...COEFFICIENTS].map(tile), threshold);
}

// Columns of the class table: key, name, format, digits, and whether higher is better.
const CLASS_COLUMNS = [
  ['objects', 'objects', whole, 0, false],
  ['ap', 'AP', fixed, 1, true],
  ['f1', 'best F1', fixed, 1, true],
  ['precision', 'precision', fixed, 1, true],
  ['recall', 'recall', fixed, 1, true],
  ['score', 'threshold', short, 3, false],
];

function classTable() {
  const names = [...new Set(RUNS.flatMap((run) => run.classes.map((row) => row.name)))];
  const found = RUNS.map((run) => new Map(run.classes.map((row) => [row.name, row])));
  const container = make('div', {});
  // Rare classes first: their AP is the least reliable.
  const objects = (name) => Math.max(...found.map((rows) => rows.get(name)?.objects ?? 0));
  names.sort((a, b) => objects(a) - objects(b));
  let [sortBy, downwards, column] = [null, true, 'ap'];

  function value(name, run, key) {
    const given = found[run].get(name)?.[key] ?? null;
    return given !== null && ['f1', 'precision', 'recall'].includes(key) ? 100 * given : given;
  }
  // The value to sort by: a metric, or with several runs the selected metric of a run.
  const sorted = (name) => (MANY ? value(name, sortBy, column) : value(name, 0, sortBy)) ?? -1;

  function render() {
    const order = [...names];
    if (sortBy === 'name') order.sort((a, b) => (downwards ? a.localeCompare(b) : b.localeCompare(a)));
    else if (sortBy !== null) order.sort((a, b) => (sorted(b) - sorted(a)) * (downwards ? 1 : -1));
    const [, , write, digits, better] = CLASS_COLUMNS.find(([key]) => key === column);
    const cells = (name) => {
      if (!MANY) return CLASS_COLUMNS.map(([key, , show, places]) => show(value(name, 0, key), places));
      const values = RUNS.map((_, run) => value(name, run, column));
      return better ? comparedCells(values, digits, write) : values.map((one) => write(one, digits));
    };
    const rows = order.map((name) => [name, ...cells(name)]);
    const head = (key, label) =>
      make(
        'button',
        {
          type: 'button',
          class: 'sort',
          'aria-label': `sort by ${typeof label === 'string' ? label : RUNS[key].name}`,
          on: {
            click() {
              downwards = sortBy === key ? !downwards : true;
              sortBy = key;
              render();
              container.querySelector(`[data-key="${key}"]`).focus();
            },
          },
          'data-key': key,
        },
        label,
        sortBy === key ? make('span', { 'aria-hidden': 'true' }, downwards === (key !== 'name') ? ' ↓' : ' ↑') : null,
      );
    const heads = MANY
      ? RUNS.map((_, run) => head(run, runLabel(run)))
      : CLASS_COLUMNS.map(([key, label]) => head(key, label));
    container.replaceChildren(table('By class', [head('name', 'class'), ...heads], rows, { class: 'classes' }));
  }

  render();
  if (!MANY) return make('div', {}, container);
  const chooser = select(
    'Show',
    CLASS_COLUMNS.map(([key, label]) => [key, label]),
    (key) => {
      column = key;
      render();
    },
  );
  chooser.field.value = column;
  return make('div', {}, chooser.node, container);
}

function overview() {
  const section = byId('overview');
  const notes = RUNS.flatMap((run) => run.notes.map((note) => (MANY ? `${run.name}: ${note}` : note)));
  section.append(...notes.map((note) => make('p', { class: 'note' }, note)));
  section.append(...DATA.comparison.map((sentence) => make('p', { class: 'lead' }, sentence)));
  section.append(
    make(
      'div',
      { class: 'grid wide' },
      RUNS.map((run, i) =>
        make(
          'div',
          { class: 'card said' },
          MANY ? make('h3', {}, runLabel(i)) : null,
          make(
            'ul',
            {},
            run.findings.map((sentence) => make('li', {}, sentence)),
          ),
        ),
      ),
    ),
  );
  section.append(make('h3', {}, 'COCO metrics'));
  if (!MANY) section.append(tiles());
  else
    section.append(
      make(
        'p',
        { class: 'muted' },
        `▲ better and ▼ worse than ${RUNS[0].name} on the same images; the best value is bold.`,
      ),
      cocoTable(),
    );
  section.append(
    make(
      'p',
      { class: 'muted' },
      'AP, F1, precision and recall in percent; AP is the mean over IoU 0.5 to 0.95 and classes. ',
      'Small: below 32² pixels, large: above 96². ',
      'PCC, SCC and KCC: Pearson, Spearman and Kendall correlation of score and IoU.',
    ),
  );
  section.append(make('h3', {}, 'By class'), classTable());
}
