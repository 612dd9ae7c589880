// What the page is about, and the thresholds a reader has chosen.

const DATA = JSON.parse(byId('data').textContent);
const RUNS = DATA.runs;
const MANY = RUNS.length > 1;
const KINDS = DATA.kinds.map((kind) => kind.key);
const [CORRECT, MISSED, BACKGROUND, LOCALISATION, CLASS, BOTH, DUPLICATE, IGNORED] = KINDS.keys();
const ERRORS = [MISSED, BACKGROUND, LOCALISATION, CLASS, BOTH, DUPLICATE];
const LETTERS = {
  [CORRECT]: '✓',
  [MISSED]: 'M',
  [BACKGROUND]: 'B',
  [LOCALISATION]: 'L',
  [CLASS]: 'C',
  [BOTH]: 'X',
  [DUPLICATE]: 'D',
};

const COLORS = 6;
const DASHES = [null, '7 3', '2 3', '9 3 2 3', '5 2', '1 2'];
const runColor = (run) => `var(--run${run % COLORS})`;
const runDash = (run) => DASHES[run % DASHES.length];
const kindColor = (kind) => `var(--${KINDS[kind]})`;

const runLabel = (run) => make('span', { class: 'run' }, swatch(runColor(run), runDash(run)), RUNS[run].name);

// Numbers of a run are set against the first run's only where both saw the same images.
const comparable = (run) => run > 0 && RUNS[run].dataset === RUNS[0].dataset;

// Where each run's scores are cut: a row of its sweep, at first the one with the best F1.
const chosenRow = (run) => RUNS[run].sweep.scores.indexOf(RUNS[run].summary.threshold.score);
const cuts = RUNS.map((_, run) => Math.max(0, chosenRow(run)));
const cutScore = (run) => RUNS[run].sweep.scores[cuts[run]];
const listeners = [];
let waiting = false;

const onCut = (listener) => listeners.push(listener);

function setCut(run, row) {
  const last = RUNS[run].sweep.scores.length - 1;
  cuts[run] = Math.min(last, Math.max(0, row));
  if (waiting) return;
  waiting = true;
  // A slider tells of every pixel; once a frame is enough.
  requestAnimationFrame(() => {
    waiting = false;
    listeners.forEach((listener) => listener());
  });
}

function nearestIndex(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}
