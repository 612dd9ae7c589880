// What goes wrong: how often at the chosen threshold, and what it costs at any.

const kindSwatch = (kind) => make('span', { class: `kind ${KINDS[kind]}`, 'aria-hidden': 'true' }, LETTERS[kind] || '');

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
    const count = (run, kind) => RUNS[run].sweep[KINDS[kind]][cuts[run]];
    const most = Math.max(1, ...ERRORS.flatMap((kind) => RUNS.map((_, run) => count(run, kind))));
    const gain = Math.max(0.1, ...ERRORS.flatMap((kind) => RUNS.map((run) => run.errors.gains[KINDS[kind]] ?? 0)));
    body.replaceChildren(
      ...ERRORS.map((kind) =>
        make(
          'tr',
          { 'data-kind': KINDS[kind] },
          make(
            'th',
            { scope: 'row' },
            kindSwatch(kind),
            ` ${KINDS[kind]}`,
            make('small', {}, DATA.kinds[kind].definition),
          ),
          make(
            'td',
            { 'data-label': 'at the threshold' },
            bars(
              RUNS.map((_, run) => count(run, kind)),
              most,
              whole,
            ),
          ),
          make(
            'td',
            { 'data-label': 'AP50 to gain' },
            bars(
              RUNS.map((run) => run.errors.gains[KINDS[kind]]),
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
          `${MANY ? ': ' : ''}${whole(count(r, CORRECT))} right, `,
          `${whole(ERRORS.reduce((sum, kind) => sum + count(r, kind), 0))} errors at score ${short(cutScore(r))}`,
        ),
      ),
    );
  }
  onCut(update);
  update();
  return [
    note,
    make(
      'div',
      { class: 'scroll' },
      make(
        'table',
        { class: 'errors' },
        make('caption', { class: 'hidden' }, 'Errors by kind'),
        make(
          'thead',
          {},
          make(
            'tr',
            {},
            ['kind', 'at the threshold', 'AP50 to gain'].map((name) => make('th', { scope: 'col' }, name)),
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
  const rows = classes.map((name, label) => [name, ...columns.map((kind) => whole(counts[KINDS[kind]][label]))]);
  const head = [
    'class',
    ...columns.map((kind) =>
      kind === CORRECT
        ? 'right'
        : make('span', { title: KINDS[kind] }, kindSwatch(kind), make('span', { class: 'long' }, ` ${KINDS[kind]}`)),
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
            .map(([truth, taken, number]) => `${classes[truth]} taken for ${classes[taken]} (${number})`)
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
