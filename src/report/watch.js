/* The live page asks for changed parts every second, or every five seconds in the background. After a failure it asks again: the answer may come from a
   new process, because versions only grow. */
'use strict';
let version = 0;
const chosen = new Set();
const state = document.createElement('p');
state.className = 'live';
state.setAttribute('role', 'status');
document.querySelector('main').prepend(state);
if (new URLSearchParams(location.search).has('runs')) {
    const back = document.createElement('a');
    back.href = '/';
    back.textContent = 'all runs';
    document.querySelector('main').prepend(back);
}
fetch_points = async (from, to) => { // page.js
    const answer = await fetch('/points?from=' + from + '&to=' + to + '&' + location.search.slice(1), {cache: 'no-store'}), holder = document.createElement('div');
    holder.innerHTML = await answer.text();
    return parse(holder.querySelector('template'));
};
async function refresh() {
    try {
        const answer = await fetch('/changes?from=' + version + '&' + location.search.slice(1), {cache: 'no-store', signal: AbortSignal.timeout(10000)});
        if (!answer.ok) throw new Error(answer.status);
        const changes = await answer.json();
        if (Object.keys(changes.parts).length) replace_parts(changes.parts); // page.js
        for (const box of document.querySelectorAll('[data-run]')) box.checked = chosen.has(box.dataset.run);
        version = changes.version;
        state.textContent = 'connected';
        state.classList.remove('lost');
    } catch {
        state.textContent = 'smelt watch does not answer: these are the last figures';
        state.classList.add('lost');
    }
    setTimeout(refresh, document.hidden ? 5000 : 1000);
}
refresh();
addEventListener('change', event => {
    const run = event.target.dataset.run;
    if (run) event.target.checked ? chosen.add(run) : chosen.delete(run);
});
addEventListener('click', event => {
    if (event.target.id === 'compare' && chosen.size) location.search = 'runs=' + [...chosen].slice(0, 8).join('/');
});
