// The recipe, with the differences between runs, and the training log.

const written = (value) => (value === undefined ? DASH : typeof value === 'string' ? value : JSON.stringify(value));

function recipe() {
  const section = byId('recipe');
  const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.recipe)))];
  // Grouped by section, because runs may have different keys.
  const groups = new Map(keys.map((key) => [key.split('.')[0], []]));
  keys.forEach((key) => groups.get(key.split('.')[0]).push(key));
  const differs = (key) => new Set(RUNS.map((run) => written(run.recipe[key]))).size > 1;
  const different = keys.filter(differs);
  const main = {
    loss: 'loss',
    assign: 'assigner',
    'model.backbone.name': 'backbone',
    'data.path': 'data',
    'train.epochs': 'epochs',
    'train.batch_size': 'batch size',
    'optimizer.name': 'optimizer',
    'optimizer.lr': 'learning rate',
  };
  const row = (key) =>
    Object.assign(
      [
        MANY && differs(key) ? [make('span', { class: 'differs', title: 'differs' }, '≠ '), key] : key,
        ...RUNS.map((run) => make('code', {}, written(run.recipe[key]))),
      ],
      { class: MANY && differs(key) ? 'changed' : null },
    );
  const head = () => ['setting', ...RUNS.map((_, run) => runLabel(run))];
  if (MANY) {
    section.append(
      make(
        'p',
        { class: 'muted' },
        different.length ? `${different.length} of ${keys.length} settings differ.` : 'The recipes are the same.',
      ),
    );
    if (different.length)
      section.append(table('Settings that differ', head(), different.map(row), { class: 'recipe' }));
  } else {
    section.append(
      make(
        'dl',
        { class: 'facts' },
        Object.entries(main)
          .filter(([key]) => key in RUNS[0].recipe)
          .map(([key, name]) =>
            make('div', { title: key }, make('dt', {}, name), make('dd', {}, written(RUNS[0].recipe[key]))),
          ),
      ),
    );
  }
  section.append(
    make(
      'details',
      { id: 'whole-recipe' },
      make('summary', {}, `All ${keys.length} settings`),
      [...groups].map(([name, own]) =>
        make(
          'details',
          { class: 'group', open: own.length < 14 },
          make('summary', {}, name, MANY && own.some(differs) ? make('span', { class: 'differs' }, ' ≠') : null),
          table(`Recipe, ${name}`, head(), own.map(row), { class: 'recipe' }),
        ),
      ),
    ),
  );
}

// Moving average over a twentieth of the curve; the window is shorter at the ends, so that the curve keeps its length.
function smooth(values) {
  const reach = Math.floor(values.length / 40);
  return values.map((_, i) => {
    const own = Math.min(reach, i, values.length - 1 - i);
    const window = values.slice(i - own, i + own + 1);
    return window.reduce((sum, value) => sum + value, 0) / window.length;
  });
}

// A chart of one logged number with a line per run, or of several numbers of one run.
function curveChart(title, names, options = {}) {
  const series = RUNS.flatMap((run, r) =>
    names
      .filter(([key]) => run.curves[key])
      .flatMap(([key, label], n) => {
        const { x, y } = run.curves[key];
        const color = MANY ? runColor(r) : runColor(n);
        const dash = runDash(MANY ? r : n);
        const name = MANY ? run.name : label;
        if (!options.smooth || y.length < 40) return [{ name, color, dash, x, y, wide: n === 0 }];
        return [
          { name: `${name}, not smoothed`, color, x, y, faint: true, unnamed: true },
          { name, color, dash, x, y: smooth(y), wide: true },
        ];
      }),
  );
  if (!series.length) return null;
  return lineChart(title, {
    series: () => series,
    x: { label: 'step', format: whole, min: 0 },
    y: { min: options.min, max: options.max, format: options.format },
  }).node;
}

const CURVES = [
  ['Ranking loss', [['ranking', 'ranking']], { smooth: true, min: 0 }],
  ['Box loss', [['box', 'box']], { smooth: true, min: 0 }],
  [
    'AP on the validation images',
    [
      ['ap', 'AP'],
      ...(MANY
        ? []
        : [
            ['ap50', 'AP50'],
            ['ap75', 'AP75'],
          ]),
    ],
    { min: 0 },
  ],
  ['Learning rate', [['lr', 'learning rate']], { min: 0 }],
];
const MORE = {
  ap50: 'AP50',
  ap75: 'AP75',
  ranking_error: 'Ranking error',
  iou: 'IoU of the positives',
  positives: 'Positives',
  unmatched: 'Objects without a positive',
  gradient_norm: 'Gradient norm',
  images_per_second: 'Images per second',
};

function training() {
  const section = byId('training');
  const skipped = RUNS.filter((run) => run.skipped).map(
    (run) => `${run.name}: ${run.skipped} steps skipped because their loss or gradient was not finite.`,
  );
  section.append(...skipped.map((sentence) => make('p', { class: 'note' }, sentence)));
  const charts = CURVES.map(([title, names, options]) => curveChart(title, names, options)).filter(Boolean);
  if (!charts.length) {
    section.append(make('p', { class: 'muted' }, 'No training log.'));
    return;
  }
  section.append(make('div', { class: 'grid narrow' }, charts));
  const shown = new Set(CURVES.flatMap(([, names]) => names.map(([key]) => key)));
  const others = [...new Set(RUNS.flatMap((run) => Object.keys(run.curves)))].filter((key) => !shown.has(key));
  if (!others.length) return;
  section.append(
    make(
      'details',
      {},
      make('summary', {}, `${others.length} more curves`),
      make(
        'div',
        { class: 'grid narrow' },
        others.map((key) => curveChart(MORE[key] || key, [[key, MORE[key] || key]], { smooth: true, min: 0 })),
      ),
    ),
  );
}
