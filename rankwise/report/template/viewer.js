// An enlarged image with a list of its boxes; the arrow keys go to the next and previous image.

const viewer = byId('viewer');
const viewerContent = viewer.appendChild(make('div', {}));
let viewed = null; // index in view.list

function boxList(item, run, drawn) {
  const result = item.results.get(run);
  const { classes } = DATA.datasets[item.dataset];
  const missed = result.objects
    .map((object, i) => [object, i])
    .filter(([object]) => object.state === MISSED)
    .map(([object, i]) => ({
      type: MISSED,
      name: classes[object.label],
      score: DASH,
      iou: DASH,
      number: drawn.numbers.objects[i],
    }));
  const kept = result.kept.map((detection, i) => ({
    type: detection.type,
    name: classes[detection.label],
    score: short(detection.score),
    iou: detection.iou.toFixed(2),
    number: drawn.numbers.detections[i],
  }));
  const errorsFirst = (row) => (row.type === CORRECT || row.type === IGNORED ? 1 : 0);
  const rows = [...missed, ...kept].sort((a, b) => errorsFirst(a) - errorsFirst(b));
  if (!rows.length) return make('p', { class: 'muted' }, 'No objects and no detections.');
  return make(
    'div',
    { class: 'scroll' },
    make(
      'table',
      { class: 'boxes' },
      make('caption', { class: 'hidden' }, `Boxes of ${RUNS[run].name}`),
      make(
        'thead',
        {},
        make(
          'tr',
          {},
          ['', 'class', 'score', 'IoU'].map((name, i) =>
            make('th', { scope: 'col', class: i > 1 ? 'number' : null }, name),
          ),
        ),
      ),
      make(
        'tbody',
        {},
        rows.map((row) =>
          make(
            'tr',
            {
              tabindex: '0',
              on: {
                pointerenter: () => drawn.highlight(row.number),
                pointerleave: () => drawn.highlight(null),
                focus: () => drawn.highlight(row.number),
                blur: () => drawn.highlight(null),
              },
            },
            make('td', {}, typeSwatch(row.type), ` ${TYPES[row.type]}`),
            make('td', {}, row.name),
            make('td', { class: 'number' }, row.score),
            make('td', { class: 'number' }, row.iou),
          ),
        ),
      ),
    ),
  );
}

function refreshViewer() {
  if (!viewer.open) return;
  if (viewed === null || !view.list.length) {
    viewer.close();
    return;
  }
  viewed = Math.min(view.list.length - 1, Math.max(0, viewed));
  const item = view.list[viewed];
  const focused = document.activeElement?.dataset?.step;
  const go = (by, text, label) =>
    make(
      'button',
      {
        type: 'button',
        'data-step': by,
        'aria-label': label,
        disabled: viewed + by < 0 || viewed + by >= view.list.length,
        on: {
          click: () => {
            viewed += by;
            refreshViewer();
          },
        },
      },
      text,
    );
  viewerContent.replaceChildren(
    make(
      'div',
      { class: 'viewer-bar' },
      make('h2', { id: 'viewer-name' }, item.image.name),
      make(
        'span',
        { class: 'muted' },
        `${viewed + 1} of ${view.list.length} · ${item.image.width} × ${item.image.height}`,
      ),
      go(-1, '‹', 'Previous image'),
      go(1, '›', 'Next image'),
      make('button', { type: 'button', 'aria-label': 'Close', on: { click: () => viewer.close() } }, '✕'),
    ),
    make(
      'div',
      { class: 'viewer-panels' },
      item.runs.map((run) => {
        const { node, drawn } = panel(item, run, true);
        return make('div', { class: 'viewer-run' }, node, boxList(item, run, drawn));
      }),
    ),
  );
  if (focused) viewer.querySelector(`[data-step="${focused}"]:not(:disabled)`)?.focus();
}

function openViewer(number) {
  viewed = number;
  tip.hide();
  viewer.showModal();
  refreshViewer();
  viewer.append(tip.element); // a dialog covers everything outside it, so the tooltip moves into it
}

viewer.addEventListener('close', () => {
  viewed = null;
  tip.hide();
  document.body.append(tip.element);
});
viewer.addEventListener('click', (event) => {
  if (event.target === viewer) viewer.close();
});
viewer.addEventListener('keydown', (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || viewed === null || event.target.matches('input')) return;
  event.preventDefault();
  viewed += by;
  refreshViewer();
});
