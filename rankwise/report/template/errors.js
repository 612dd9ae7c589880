// Errors by type: their number at the selected threshold, and their cost in AP50.

const typeSwatch = (type) => make('span', { class: `type ${TYPES[type]}`, 'aria-hidden': 'true' }, LETTERS[type] || '');

function bars(values, most, write) {
  return values.map((value, run) =>
    make(
      'div',
      { class: 'meter' },
      make('i', { style: { '--part': Math.max(0, value ?? 0) / (most || 1), '--c': runColor(run) } }),
      make(
        'span',
        {},
        make('b', {}, write(value)),
        ' ',
        comparable(run) && value !== null && values[0] !== null
          ? change(value - values[0], write === whole ? 0 : 1, false)
          : null,
      ),
    ),
  );
}

function errorTable() {
  const body = make('tbody', {});
  const note = make('p', { class: 'muted' });
  function update() {
    const count = (run, type) => RUNS[run].sweep[TYPES[type]][thresholdRows[run]];
    const most = Math.max(1, ...ERRORS.flatMap((type) => RUNS.map((_, run) => count(run, type))));
    const gain = Math.max(0.1, ...ERRORS.flatMap((type) => RUNS.map((run) => run.errors.gains[TYPES[type]] ?? 0)));
    body.replaceChildren(
      ...ERRORS.map((type) =>
        make(
          'tr',
          { 'data-type': TYPES[type] },
          make(
            'th',
            { scope: 'row' },
            typeSwatch(type),
            ` ${TYPES[type]}`,
            make('small', {}, DATA.types[type].definition),
          ),
          make(
            'td',
            { 'data-label': 'at the threshold' },
            bars(
              RUNS.map((_, run) => count(run, type)),
              most,
              whole,
            ),
          ),
          make(
            'td',
            { 'data-label': 'AP50 to gain' },
            bars(
              RUNS.map((run) => run.errors.gains[TYPES[type]]),
              gain,
              (value) => (value === null ? DASH : signed(value)),
            ),
          ),
        ),
      ),
    );
    note.replaceChildren(
      ...RUNS.map((run, r) =>
        make(
          'span',
          { class: 'tally' },
          MANY ? runLabel(r) : null,
          `${MANY ? ': ' : ''}${whole(count(r, CORRECT))} correct, `,
          `${whole(ERRORS.reduce((sum, type) => sum + count(r, type), 0))} errors at threshold ${short(thresholdOf(r))}`,
        ),
      ),
    );
  }
  onThresholdChange(update);
  update();
  return [
    note,
    make(
      'div',
      { class: 'scroll' },
      make(
        'table',
        { class: 'errors' },
        make('caption', { class: 'hidden' }, 'Errors by type'),
        make(
          'thead',
          {},
          make(
            'tr',
            {},
            ['type', 'at the threshold', 'AP50 to gain'].map((name) => make('th', { scope: 'col' }, name)),
          ),
        ),
        body,
      ),
    ),
  ];
}

function errorsByClass(run) {
  const { by_class: counts, confusions } = RUNS[run].errors;
  const { classes } = DATA.datasets[RUNS[run].dataset];
  const columns = [CORRECT, ...ERRORS];
  const rows = classes.map((name, label) => [name, ...columns.map((type) => whole(counts[TYPES[type]][label]))]);
  const head = [
    'class',
    ...columns.map((type) =>
      type === CORRECT
        ? 'correct'
        : make('span', { title: TYPES[type] }, typeSwatch(type), make('span', { class: 'long' }, ` ${TYPES[type]}`)),
    ),
  ];
  return make(
    'div',
    {},
    MANY ? make('h3', {}, runLabel(run)) : null,
    table(`Errors of ${RUNS[run].name} by class`, head, rows, { class: 'dense' }),
    confusions.length
      ? make(
          'p',
          { class: 'muted' },
          'Most often confused: ',
          confusions
            .map(([truth, predicted, number]) => `${classes[truth]} as ${classes[predicted]} (${number})`)
            .join(', '),
          '.',
        )
      : null,
  );
}

function errors() {
  byId('errors').append(
    ...errorTable(),
    make(
      'details',
      {},
      make('summary', {}, 'By class, at the threshold with the best F1'),
      make(
        'div',
        { class: 'grid wide' },
        RUNS.map((_, run) => errorsByClass(run)),
      ),
    ),
  );
}
