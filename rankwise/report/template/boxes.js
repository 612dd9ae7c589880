// The detections and errors of a run in one image at its threshold, and the image with its boxes.

// The rows of the data as objects.
const detectionOf = ([x1, y1, x2, y2, score, label, type, iou, object]) => ({
  box: [x1, y1, x2, y2],
  score,
  label,
  type,
  iou,
  object,
});
const objectOf = ([x1, y1, x2, y2, label, crowd]) => ({ box: [x1, y1, x2, y2], label, crowd: Boolean(crowd) });

function evaluateImage(run, index) {
  const threshold = thresholdOf(run);
  const image = DATA.datasets[RUNS[run].dataset].sheet[index];
  const rows = RUNS[run].boxes[index];
  const kept = [];
  for (const row of rows.detections) {
    if (row[4] < threshold) break; // sorted by descending score
    kept.push(detectionOf(row));
  }
  const objects = image.objects.map((row, i) => {
    const [found, covered] = rows.objects[i];
    const state = found !== null && found >= threshold ? CORRECT : covered !== null && covered >= threshold ? CLASS : MISSED;
    return { ...objectOf(row), found, state: row[5] ? IGNORED : state };
  });
  const counts = TYPES.map(() => 0);
  kept.forEach((detection) => {
    counts[detection.type] += 1;
  });
  counts[MISSED] = objects.filter((object) => object.state === MISSED).length;
  const wrong = kept.filter((detection) => detection.type !== CORRECT && detection.type !== IGNORED);
  const expected = objects.filter((object) => !object.crowd).length;
  const total = counts[CORRECT] + wrong.length + expected;
  return {
    kept,
    objects,
    counts,
    errors: wrong.length + counts[MISSED],
    f1: total ? (2 * counts[CORRECT]) / total : 1,
    confidence: wrong.length ? wrong[0].score : -Infinity,
  };
}

const shownBoxes = { objects: true, correct: true, errors: true };

// filter: boxes of another type or label are dimmed; null matches all. named: whether tags have class names.
function picture(item, run, filter, named) {
  const dataset = DATA.datasets[item.dataset];
  const image = dataset.sheet[item.index];
  const result = item.results.get(run);
  const container = make('div', {
    class: `picture${named ? ' named' : ''}`,
    style: { 'aspect-ratio': `${image.width} / ${image.height}` },
  });
  if (image.src)
    container.append(make('img', { src: image.src, alt: `${image.name}, ${result.errors} errors`, draggable: 'false' }));
  else container.append(make('p', { class: 'fault' }, `The image cannot be read: ${image.fault}`));
  const found = [];

  function add(box, type, label, classes, tag, lines) {
    const [x1, y1, x2, y2] = box;
    const fits =
      (filter.type === null || filter.type === type) &&
      (filter.label === null || filter.label === dataset.classes[label]);
    const node = make(
      'div',
      {
        class: [
          'box',
          classes,
          fits ? '' : 'dim',
          y1 < image.height * 0.07 ? 'low' : '',
          x1 > image.width * 0.7 ? 'far' : '',
        ].join(' '),
        style: {
          left: `${(100 * x1) / image.width}%`,
          top: `${(100 * y1) / image.height}%`,
          width: `${(100 * (x2 - x1)) / image.width}%`,
          height: `${(100 * (y2 - y1)) / image.height}%`,
        },
      },
      tag ? make('span', { class: 'tag' }, tag) : null,
    );
    found.push({ box, node, lines, type, size: (x2 - x1) * (y2 - y1) });
    container.append(node);
    return found.length - 1;
  }

  const numbers = { objects: [], detections: [] };
  result.objects.forEach((object, i) => {
    const name = dataset.classes[object.label];
    const missed = object.state === MISSED;
    const disagreements = item.disagreements.has(i);
    if (missed ? !shownBoxes.errors : !shownBoxes.objects) return;
    const status = object.crowd
      ? 'a crowd region: detections here are not counted'
      : object.state === CORRECT
        ? `detected with score ${short(object.found)}`
        : missed
          ? 'missed'
          : 'not detected, but a class or localization error refers to it';
    const lines = [[make('b', {}, name), ' (annotated)'], status];
    if (disagreements)
      lines.push(
        `≠ only detected by ${item.runs
          .filter((r) => item.results.get(r).objects[i].state === CORRECT)
          .map((r) => RUNS[r].name)
          .join(', ')}`,
      );
    const tag = `${missed ? LETTERS[MISSED] : ''}${disagreements ? '≠' : ''}${named && missed ? ` ${name}` : ''}`;
    numbers.objects[i] = add(
      object.box,
      missed ? MISSED : CORRECT,
      object.label,
      `object${missed ? ' missed' : ''}${object.crowd ? ' crowd' : ''}`,
      tag,
      lines,
    );
  });
  result.kept.forEach((detection, i) => {
    const correct = detection.type === CORRECT || detection.type === IGNORED;
    if (correct ? !shownBoxes.correct : !shownBoxes.errors) return;
    const name = dataset.classes[detection.label];
    const target = detection.object >= 0 ? ` with ${dataset.classes[result.objects[detection.object].label]}` : '';
    const lines = [
      [typeSwatch(detection.type), ' ', make('b', {}, `${name} ${short(detection.score)}`)],
      [
        make('b', {}, detection.type === IGNORED ? 'on a crowd region' : TYPES[detection.type]),
        `, IoU ${detection.iou.toFixed(2)}${target}`,
      ],
    ];
    if (!correct) lines.push(make('small', {}, DATA.types[detection.type].definition));
    const letter = correct ? '' : LETTERS[detection.type];
    numbers.detections[i] = add(
      detection.box,
      detection.type,
      detection.label,
      `detection ${TYPES[detection.type]}`,
      named ? `${letter} ${name} ${short(detection.score)}`.trim() : letter,
      lines,
    );
  });

  let highlighted = null;
  function highlight(number) {
    if (highlighted !== null) found[highlighted].node.classList.remove('highlighted');
    highlighted = number ?? null;
    container.classList.toggle('choosing', highlighted !== null);
    if (highlighted !== null) found[highlighted].node.classList.add('highlighted');
  }
  function point(event) {
    const frameBox = container.getBoundingClientRect();
    const x = ((event.clientX - frameBox.left) / frameBox.width) * image.width;
    const y = ((event.clientY - frameBox.top) / frameBox.height) * image.height;
    let under = null;
    found.forEach(({ box, size }, number) => {
      if (x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3] && (under === null || size <= found[under].size))
        under = number;
    });
    highlight(under);
    if (under === null) tip.hide();
    else tip.show(event.clientX, event.clientY, found[under].lines);
  }
  container.addEventListener('pointermove', point);
  container.addEventListener('pointerdown', point);
  container.addEventListener('pointerleave', (event) => {
    if (event.pointerType === 'touch') return; // the tooltip stays after a tap
    highlight(null);
    tip.hide();
  });
  return { node: container, highlight, numbers };
}
