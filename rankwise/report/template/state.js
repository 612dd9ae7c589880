// The data of the page, and the selected thresholds.

const DATA = JSON.parse(byId('data').textContent);
const RUNS = DATA.runs;
const MANY = RUNS.length > 1;
const TYPES = DATA.types.map((type) => type.key);
const [CORRECT, MISSED, BACKGROUND, LOCALIZATION, CLASS, BOTH, DUPLICATE, IGNORED] = TYPES.keys();
const ERRORS = [MISSED, BACKGROUND, LOCALIZATION, CLASS, BOTH, DUPLICATE];
const LETTERS = {
  [CORRECT]: '✓',
  [MISSED]: 'M',
  [BACKGROUND]: 'B',
  [LOCALIZATION]: 'L',
  [CLASS]: 'C',
  [BOTH]: 'X',
  [DUPLICATE]: 'D',
};

const COLORS = 6;
const DASHES = [null, '7 3', '2 3', '9 3 2 3', '5 2', '1 2'];
const runColor = (run) => `var(--run${run % COLORS})`;
const runDash = (run) => DASHES[run % DASHES.length];

const runLabel = (run) => make('span', { class: 'run' }, swatch(runColor(run), runDash(run)), RUNS[run].name);

// A run is compared with the first one only if both were evaluated on the same images.
const comparable = (run) => run > 0 && RUNS[run].dataset === RUNS[0].dataset;

// The selected threshold of each run, as an index of its sweep; initially the one with the best F1.
const bestRow = (run) => RUNS[run].sweep.scores.indexOf(RUNS[run].summary.threshold.score);
const thresholdRows = RUNS.map((_, run) => Math.max(0, bestRow(run)));
const thresholdOf = (run) => RUNS[run].sweep.scores[thresholdRows[run]];
const listeners = [];
let waiting = false;

const onThresholdChange = (listener) => listeners.push(listener);

function setThresholdRow(run, row) {
  const last = RUNS[run].sweep.scores.length - 1;
  thresholdRows[run] = Math.min(last, Math.max(0, row));
  if (waiting) return;
  waiting = true;
  // A slider fires for every pixel; updating once per frame is enough.
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
