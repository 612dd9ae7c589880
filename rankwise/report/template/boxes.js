// What a run made of one image at its threshold, and the picture with its boxes.

// Rows of the data, by name.
const detectionOf = ([x1, y1, x2, y2, score, label, kind, iou, object]) => ({
  box: [x1, y1, x2, y2],
  score,
  label,
  kind,
  iou,
  object,
});
const objectOf = ([x1, y1, x2, y2, label, crowd]) => ({ box: [x1, y1, x2, y2], label, crowd: Boolean(crowd) });

function judge(run, index) {
  const cut = cutScore(run);
  const image = DATA.datasets[RUNS[run].dataset].sheet[index];
  const rows = RUNS[run].boxes[index];
  const kept = [];
  for (const row of rows.detections) {
    if (row[4] < cut) break; // they come by falling score
    kept.push(detectionOf(row));
  }
  const objects = image.objects.map((row, i) => {
    const [found, covered] = rows.objects[i];
    const state = found !== null && found >= cut ? CORRECT : covered !== null && covered >= cut ? CLASS : MISSED;
    return { ...objectOf(row), found, state: row[5] ? IGNORED : state };
  });
  const counts = KINDS.map(() => 0);
  kept.forEach((detection) => {
    counts[detection.kind] += 1;
  });
  counts[MISSED] = objects.filter((object) => object.state === MISSED).length;
  const wrong = kept.filter((detection) => detection.kind !== CORRECT && detection.kind !== IGNORED);
  const wanted = objects.filter((object) => !object.crowd).length;
  const total = counts[CORRECT] + wrong.length + wanted;
  return {
    kept,
    objects,
    counts,
    errors: wrong.length + counts[MISSED],
    f1: total ? (2 * counts[CORRECT]) / total : 1,
    surest: wrong.length ? wrong[0].score : -Infinity,
  };
}

const shownBoxes = { objects: true, right: true, errors: true };

// kind and label: only boxes of these stand out; null is any.
function picture(item, run, filter, named) {
  const dataset = DATA.datasets[item.dataset];
  const image = dataset.sheet[item.index];
  const judged = item.judged.get(run);
  const place = make('div', {
    class: `picture${named ? ' named' : ''}`,
    style: { 'aspect-ratio': `${image.width} / ${image.height}` },
  });
  if (image.src)
    place.append(make('img', { src: image.src, alt: `${image.name}, ${judged.errors} errors`, draggable: 'false' }));
  else place.append(make('p', { class: 'fault' }, `The picture cannot be read: ${image.fault}`));
  const found = [];

  function add(box, kind, label, classes, tag, lines) {
    const [x1, y1, x2, y2] = box;
    const fits =
      (filter.kind === null || filter.kind === kind) &&
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
    found.push({ box, node, lines, kind, size: (x2 - x1) * (y2 - y1) });
    place.append(node);
    return found.length - 1;
  }

  const numbers = { objects: [], detections: [] };
  judged.objects.forEach((object, i) => {
    const name = dataset.classes[object.label];
    const missed = object.state === MISSED;
    const unlike = item.unlike.has(i);
    if (missed ? !shownBoxes.errors : !shownBoxes.objects) return;
    const fate = object.crowd
      ? 'a crowd: detections here do not count'
      : object.state === CORRECT
        ? `found at score ${short(object.found)}`
        : missed
          ? 'missed'
          : 'not found, but a class or localisation error is on it';
    const lines = [[make('b', {}, name), ' (annotated)'], fate];
    if (unlike)
      lines.push(
        `≠ found by ${item.runs
          .filter((r) => item.judged.get(r).objects[i].state === CORRECT)
          .map((r) => RUNS[r].name)
          .join(', ')} only`,
      );
    const tag = `${missed ? LETTERS[MISSED] : ''}${unlike ? '≠' : ''}${named && missed ? ` ${name}` : ''}`;
    numbers.objects[i] = add(
      object.box,
      missed ? MISSED : CORRECT,
      object.label,
      `object${missed ? ' missed' : ''}${object.crowd ? ' crowd' : ''}`,
      tag,
      lines,
    );
  });
  judged.kept.forEach((detection, i) => {
    const right = detection.kind === CORRECT || detection.kind === IGNORED;
    if (right ? !shownBoxes.right : !shownBoxes.errors) return;
    const name = dataset.classes[detection.label];
    const target = detection.object >= 0 ? ` with ${dataset.classes[judged.objects[detection.object].label]}` : '';
    const lines = [
      [kindSwatch(detection.kind), ' ', make('b', {}, `${name} ${short(detection.score)}`)],
      [
        make('b', {}, right ? (detection.kind === CORRECT ? 'right' : 'on a crowd') : KINDS[detection.kind]),
        `, IoU ${detection.iou.toFixed(2)}${target}`,
      ],
    ];
    if (!right) lines.push(make('small', {}, DATA.kinds[detection.kind].definition));
    const letter = right ? '' : LETTERS[detection.kind];
    numbers.detections[i] = add(
      detection.box,
      detection.kind,
      detection.label,
      `detection ${KINDS[detection.kind]}`,
      named ? `${letter} ${name} ${short(detection.score)}`.trim() : letter,
      lines,
    );
  });

  let lit = null;
  function light(number) {
    if (lit !== null) found[lit].node.classList.remove('lit');
    lit = number ?? null;
    place.classList.toggle('choosing', lit !== null);
    if (lit !== null) found[lit].node.classList.add('lit');
  }
  function point(event) {
    const frameBox = place.getBoundingClientRect();
    const x = ((event.clientX - frameBox.left) / frameBox.width) * image.width;
    const y = ((event.clientY - frameBox.top) / frameBox.height) * image.height;
    let under = null;
    found.forEach(({ box, size }, number) => {
      if (x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3] && (under === null || size <= found[under].size))
        under = number;
    });
    light(under);
    if (under === null) tip.hide();
    else tip.show(event.clientX, event.clientY, found[under].lines);
  }
  place.addEventListener('pointermove', point);
  place.addEventListener('pointerdown', point);
  place.addEventListener('pointerleave', (event) => {
    if (event.pointerType === 'touch') return; // a finger has left the glass; what it touched stays
    light(null);
    tip.hide();
  });
  return { node: place, light, numbers };
}
