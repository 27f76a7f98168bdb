'use strict';
const $ = (id) => document.getElementById(id);
const token = document.querySelector('meta[name=token]').content;

async function ask(address, options) {
  const answer = await fetch(address, options);
  const text = await answer.text();
  if (!answer.ok) throw new Error(text);
  return text;
}

const post = (address, body) => ask(address, {method: 'POST', headers: {'X-Token': token}, body});

async function attempt(action) {
  try {
    await action();
  } catch (error) {
    $('message').textContent += `${error.message}\n`;
  }
}

async function refresh() {
  const open = new Set([...document.querySelectorAll('article:has(details[open])')].map((one) => one.dataset.key));
  $('results').innerHTML = await ask(`results?rate=${$('rate').value / 100}`);
  for (const one of document.querySelectorAll('article'))
    if (open.has(one.dataset.key)) one.querySelector('details').open = true;
}

let polling = false;
async function refreshLearning() {
  $('learning').innerHTML = await ask('learning');
  const running = $('job')?.dataset.state === 'running';
  if (running) {
    polling = true;
    setTimeout(() => attempt(refreshLearning), 1000);
  } else if (polling) {
    polling = false;
    await refresh();
  }
}

async function inspect(requests) {
  $('message').textContent = '';
  const progress = document.title;
  let done = 0;
  for (const request of requests) {
    await attempt(request);
    done += 1;
    document.title = `${done} of ${requests.length}`;
    $('drop').querySelector('small').textContent = `${done} of ${requests.length} images inspected`;
  }
  document.title = progress;
  await attempt(refresh);
}

const upload = (files) =>
  inspect([...files].map((file) => () => {
    if (file.size > Number($('files').dataset.bytes)) throw new Error(`${file.name} is too large`);
    return post(`images?name=${encodeURIComponent(file.name)}`, file);
  }));

$('files').onchange = (event) => upload(event.target.files);
for (const kind of ['dragover', 'dragleave', 'drop'])
  $('drop').addEventListener(kind, (event) => {
    event.preventDefault();
    $('drop').classList.toggle('over', kind === 'dragover');
    if (kind === 'drop') upload(event.dataTransfer.files);
  });

if ($('inspect'))
  $('inspect').onclick = () => attempt(async () => {
    const names = JSON.parse(await ask(`folder?path=${encodeURIComponent($('folder').value)}`));
    await inspect(names.map((name) => () => post(`folder?path=${encodeURIComponent(name)}`)));
  });

function rateChanged() {
  if (!$('rate').reportValidity()) return;
  history.replaceState(null, '', `?rate=${$('rate').value / 100}`);
  attempt(refresh);
}
const showRate = () => ($('slider').value = Math.log10($('rate').value / 100));
$('rate').onchange = () => { showRate(); rateChanged(); };
$('slider').oninput = () => ($('rate').value = Number((100 * 10 ** $('slider').value).toPrecision(2)));
$('slider').onchange = rateChanged;

document.body.addEventListener('click', (event) => {
  const address = event.target.dataset?.post;
  if (address)
    attempt(async () => {
      $('message').textContent = '';
      event.target.disabled = true;
      try {
        await post(address);
      } finally {
        await refresh();
        await refreshLearning();
      }
    });
});

showRate();
attempt(refresh);
attempt(refreshLearning);
