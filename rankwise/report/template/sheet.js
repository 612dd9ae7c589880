// The sheet of images: filters, order, pages of cards.

const PAGE = 12;

const ITEMS = DATA.datasets.flatMap((dataset, d) =>
  dataset.sheet.map((image, index) => ({
    dataset: d,
    index,
    image,
    runs: RUNS.map((_, run) => run).filter((run) => RUNS[run].dataset === d),
    judged: new Map(),
    unlike: new Set(),
  })),
);

// Judges all images at the thresholds of now.
function judgeItems() {
  for (const item of ITEMS) {
    item.judged = new Map(item.runs.map((run) => [run, judge(run, item.index)]));
    const views = [...item.judged.values()];
    item.unlike = new Set(
      item.image.objects
        .map((_, i) => i)
        .filter((i) => new Set(views.map((one) => one.objects[i].state === CORRECT)).size > 1),
    );
    item.errors = views.reduce((sum, one) => sum + one.errors, 0);
    item.f1 = views.reduce((sum, one) => sum + one.f1, 0) / views.length;
    item.surest = Math.max(...views.map((one) => one.surest));
    item.gap = Math.max(...views.map((one) => one.errors)) - Math.min(...views.map((one) => one.errors));
  }
}

const ORDERS = {
  errors: ['most errors', (a, b) => b.errors - a.errors || a.f1 - b.f1],
  f1: ['lowest F1', (a, b) => a.f1 - b.f1 || b.errors - a.errors],
  surest: ['surest error', (a, b) => b.surest - a.surest],
  ...(MANY
    ? { gap: ['largest difference', (a, b) => b.gap - a.gap || b.unlike.size - a.unlike.size || b.errors - a.errors] }
    : {}),
  fewest: ['fewest errors', (a, b) => a.errors - b.errors || b.f1 - a.f1],
  name: ['name', (a, b) => a.image.name.localeCompare(b.image.name, 'en', { numeric: true })],
};

const view = { kind: 'all', label: '', order: 'errors', page: 0, list: [] };

// What the boxes of a picture are compared with.
const filterOf = () => ({
  kind: KINDS.includes(view.kind) ? KINDS.indexOf(view.kind) : null,
  label: view.label || null,
});

function fits(item) {
  const names = DATA.datasets[item.dataset].classes;
  const { kind, label } = filterOf();
  const named = (row) => label === null || names[row.label] === label;
  return [...item.judged.values()].some((judged) => {
    if (view.kind === 'none') return judged.errors === 0 && (label === null || judged.objects.some(named));
    const missed = judged.objects.filter((object) => object.state === MISSED && named(object));
    if (kind === MISSED) return missed.length > 0;
    if (kind !== null) return judged.kept.some((detection) => detection.kind === kind && named(detection));
    if (view.kind === 'any')
      return missed.length > 0 || judged.kept.some((detection) => ERRORS.includes(detection.kind) && named(detection));
    return label === null || judged.objects.some(named) || judged.kept.some(named);
  });
}

function tally(judged) {
  const parts = ERRORS.filter((kind) => judged.counts[kind]).map((kind) =>
    make('span', { class: 'chip', title: KINDS[kind] }, kindSwatch(kind), ` ${judged.counts[kind]}`),
  );
  return make(
    'span',
    { class: 'chips' },
    make('span', { class: 'chip', title: 'right' }, kindSwatch(CORRECT), ` ${judged.counts[CORRECT]}`),
    parts,
  );
}

function panel(item, run, named) {
  const judged = item.judged.get(run);
  const drawn = picture(item, run, filterOf(), named);
  const fewest = Math.min(...[...item.judged.values()].map((one) => one.errors));
  const better = item.gap > 0 && judged.errors === fewest;
  const head =
    item.runs.length > 1
      ? make(
          'p',
          { class: 'panel-name' },
          runLabel(run),
          better ? make('span', { class: 'delta good', title: 'fewest errors here' }, '▲ better') : null,
        )
      : null;
  return { node: make('div', { class: 'panel' }, head, drawn.node, tally(judged)), drawn };
}

function card(item, number) {
  const open = () => openViewer(number);
  const panels = item.runs.map((run) => panel(item, run, false).node);
  panels.forEach((node) => node.querySelector('.picture').addEventListener('click', open));
  return make(
    'article',
    { class: `item${item.runs.length > 1 ? ' several' : ''}` },
    make('h3', {}, make('button', { type: 'button', class: 'link', on: { click: open } }, item.image.name)),
    make('div', { class: 'panels' }, panels),
    item.unlike.size
      ? make(
          'p',
          { class: 'muted small' },
          make('span', { class: 'differs' }, '≠ '),
          `${item.unlike.size} object${item.unlike.size > 1 ? 's' : ''} not found by all runs`,
        )
      : null,
  );
}

function sheet() {
  const section = byId('images');
  const place = make('div', { class: MANY ? 'cards pairs' : 'cards' });
  const status = make('p', { class: 'muted', role: 'status' });
  const pages = make('span', {});
  const step = (by) => () => {
    view.page += by;
    render();
    section.scrollIntoView();
  };
  const [back, next] = [
    ['‹ Previous', -1],
    ['Next ›', 1],
  ].map(([text, by]) => make('button', { type: 'button', on: { click: step(by) } }, text));

  function render() {
    const last = Math.max(0, Math.ceil(view.list.length / PAGE) - 1);
    view.page = Math.min(last, Math.max(0, view.page));
    const first = view.page * PAGE;
    place.replaceChildren(...view.list.slice(first, first + PAGE).map((item, i) => card(item, first + i)));
    status.textContent = view.list.length
      ? `${whole(view.list.length)} of ${whole(ITEMS.length)} images`
      : 'No image fits; choose other filters.';
    pages.textContent = `${view.page + 1} / ${last + 1}`;
    back.disabled = view.page === 0;
    next.disabled = view.page === last;
  }

  function refilter() {
    judgeItems();
    view.list = ITEMS.filter(fits).sort(ORDERS[view.order][1]);
    render();
    refreshViewer();
  }
  const change = (key) => (value) => {
    view[key] = value;
    view.page = 0;
    refilter();
  };

  const total = DATA.datasets.reduce((sum, dataset) => sum + dataset.images, 0);
  section.append(
    make(
      'p',
      { class: 'muted' },
      ITEMS.length < total ? `The ${whole(ITEMS.length)} images with most errors of ${whole(total)}. ` : '',
      'Point at a box for its values, open an image to see it large. Dashed boxes are annotated objects.',
    ),
  );
  if (!ITEMS.length) return;
  const classes = [...new Set(DATA.datasets.flatMap((dataset) => dataset.classes))].map((name) => [name, name]);
  const kinds = [
    ['all', 'all images'],
    ['any', 'with errors'],
    ...ERRORS.map((kind) => [KINDS[kind], KINDS[kind]]),
    ['none', 'without errors'],
  ];
  const toggles = [
    ['objects', 'objects'],
    ['right', 'right boxes'],
    ['errors', 'errors'],
  ];
  section.append(
    make(
      'div',
      { class: 'toolbar' },
      select('Error', kinds, change('kind')).node,
      select('Class', [['', 'all'], ...classes], change('label')).node,
      select(
        'Order',
        Object.entries(ORDERS).map(([key, [name]]) => [key, name]),
        change('order'),
      ).node,
      make(
        'fieldset',
        {},
        make('legend', { class: 'hidden' }, 'Boxes to show'),
        toggles.map(([key, text]) =>
          checkbox(text, true, (on) => {
            shownBoxes[key] = on;
            refilter();
          }),
        ),
      ),
    ),
    make(
      'div',
      { class: 'controls' },
      RUNS.map((_, run) => thresholdControl(run)),
    ),
    make(
      'p',
      { class: 'key' },
      [CORRECT, ...ERRORS].map((kind) =>
        make(
          'span',
          { title: DATA.kinds[kind].definition },
          kindSwatch(kind),
          ` ${kind === CORRECT ? 'right' : KINDS[kind]}`,
        ),
      ),
      MANY ? make('span', {}, make('span', { class: 'differs' }, '≠'), ' not found by all runs') : null,
    ),
    status,
    place,
    make('div', { class: 'pager' }, back, pages, next),
  );
  onCut(refilter);
  refilter();
}
