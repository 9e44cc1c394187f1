// The viewer of episodes: filters, a list, and one environment with its episodes side by side.
//
//   data    the JSON of the page, which `astra_jax/report/episodes.py` describes
//   form    the choices of the reader; the hash of the address holds them too, with the key of the open episode
//
// Texts of models are untrusted: they reach the page as text nodes and attribute values, never as HTML.
"use strict";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("episodes-data").textContent);
const form = $("choices"), list = $("list"), detail = $("detail"), told = $("told"), START = "#episodes?";

/** Return a new element; children that are no elements become text. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== "") element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const plain = (value) => typeof value === "string" ? value : JSON.stringify(value);
const number = (value, digits = 3) => value.toFixed(digits);
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const distinct = (values) => [...new Set(values)];

// --- the episodes ---

const episodes = data.episodes.map((each) => ({
  ...each,
  environment: data.environments[each.environment],
  label: each.run ? `${each.policy} · ${each.run}` : each.policy,
  errors: distinct(each.calls.map((call) => call.error).filter(Boolean)),
}));
for (const environment of data.environments) {
  environment.episodes = episodes.filter((each) => each.environment === environment);
  const rewards = environment.episodes.map((each) => each.reward);
  environment.spread = Math.max(...rewards) - Math.min(...rewards);
  for (const each of environment.episodes) {
    each.group = environment.episodes.filter((other) => other.label === each.label);
    each.key = [environment.id, each.label, each.group.indexOf(each) + 1].join("~");
  }
}
const newest = Math.max(0, ...episodes.flatMap((each) => each.runs.map(([, , version]) => version)));

const FILTERS = {
  policy: (each) => [each.policy], run: (each) => [each.run], split: (each) => [each.split], stop: (each) => [each.stop],
  domain: (each) => [each.environment.domain], scenario: (each) => [each.environment.scenario],
  language: (each) => [{ en: "English", zh: "Chinese" }[each.environment.language]],
  error: (each) => each.errors.length ? each.errors : ["no error"],
};
const SORTS = {
  "": () => 0,
  lowest: (a, b) => a.reward - b.reward,
  highest: (a, b) => b.reward - a.reward,
  spread: (a, b) => b.environment.spread - a.environment.spread,
  calls: (a, b) => b.calls.length - a.calls.length,
  tokens: (a, b) => b.logprobs.length - a.logprobs.length,
};

/** Return the text that a search looks through: of the environment, and all that followed the prompt. */
function searched(each) {
  const { question, answer, id } = each.environment, said = () => each.tokens.map((place) => data.tokens[place][1]).join("");
  return each.text ??= [question, plain(answer), id, said()].join("\n").toLowerCase();
}

function chosen(choices) {
  const least = parseFloat(choices.least), most = parseFloat(choices.most), words = choices.search.trim().toLowerCase();
  return episodes.filter((each) =>
    Object.entries(FILTERS).every(([name, values]) => !choices[name] || values(each).includes(choices[name]))
    && !(each.reward < least) && !(each.reward > most) && (!words || searched(each).includes(words))).sort(SORTS[choices.sort]);
}

// --- the list ---

let shown = [], open = null;

function drawList(choices) {
  shown = chosen(choices);
  $("count").textContent = `${counted(shown.length, "episode")} of ${episodes.length.toLocaleString("en")}`
    + (shown.length ? `, mean reward ${number(mean(shown.map((each) => each.reward)))}` : "");
  list.replaceChildren(...shown.map((each) => {
    const reward = make("b", { class: each.reward >= 1 ? "good" : each.reward > 0 ? "" : "bad" }, number(each.reward, 2));
    each.row = make("button", { type: "button" }, reward, make("span", { class: "policy" }, each.label),
      make("span", { class: "asked", lang: each.environment.language }, each.environment.question));
    each.row.addEventListener("click", () => openEpisode(each));
    return make("li", {}, each.row);
  }));
}

/** Tell the mean F1 of the policies of the open environment on all environments that have them, if outcomes are not filtered. */
function onTheSame(choices) {
  const isShown = new Set(shown);
  const of = (environment, label) => environment.episodes.filter((each) => each.label === label && isShown.has(each));
  const labels = open ? distinct(open.environment.episodes.map((each) => each.label)).filter((label) => of(open.environment, label).length) : [];
  if (labels.length < 2 || ["least", "most", "search", "stop", "error"].some((name) => choices[name])) return "";
  const common = distinct(shown.map((each) => each.environment))
    .filter((environment) => labels.every((label) => of(environment, label).length));
  const f1 = (label) => mean(common.map((environment) => mean(of(environment, label).map((each) => each.f1))));
  return `Mean F1 on the ${counted(common.length, "environment")} that all have: `
    + labels.map((label) => `${label} ${number(f1(label))}`).join(", ");
}

// --- one episode ---

// Each has a legend, and the strength of a token's colour: full at 1, and red below 0.
const OVERLAYS = {
  source: ["", () => 0],
  mask: ["Coloured tokens have loss.", () => 1],
  logprob: ["The stronger, the less likely the token was; full at p ≤ 1.8 %.", (token) => Math.min(1, -token.logprob / 4)],
  version: [`The stronger, the newer the weights; full at version ${newest}.`, (token) => (token.version + 1) / (newest + 1)],
  advantage: ["Advantage of the episode in its group: blue above 0, red below, full at 2.",
    (_, each) => atMost1((each.advantage ?? 0) / 2)],
  ratio: ["Probability by the learner over that by the sampler: blue above 1, red below, full at 0.8 and 1.2.",
    ({ difference }) => atMost1((Math.exp(difference) - 1) / 0.2)],
  difference: ["The further apart the log-probs by learner and sampler, the stronger: none at 1e-6, full at 1, by powers of ten.",
    ({ difference }) => Math.min(1, 1 + Math.log10(Math.max(1e-6, Math.abs(difference))) / 6)],
};
const atMost1 = (value) => Math.max(-1, Math.min(1, value));

/** Return a span for each run of one writer, with an element for each token; a character may span tokens. */
function tokenRuns(places, runs, each, overlay) {
  let at = places === each.tokens ? data.prompts[each.prompt].length : 0, place = 0, sampled = 0;
  return runs.map(([source, turn, version, count]) => {
    const run = make("span", { class: `run ${source}` });
    let last = null;
    for (const end = place + count; place < end; place++, at++) {
      const [id, text] = data.tokens[places[place]];
      const logprob = source === "model" ? each.logprobs[sampled] / 1000 : null;
      const difference = source === "model" ? (each.differences[sampled++] ?? 0) / 1e6 : 0;
      if (text || !last) {
        last = make("i", {});
        last.token = { at, ids: [], logprobs: [], source, turn, version, text, difference, isLearnt: each.differences.length > 0 };
        text.split("\n").forEach((line, row) => last.append(...(row ? [make("s", {}, "↵"), "\n"] : []), line));
        if (source === "model") {
          const strength = OVERLAYS[overlay][1]({ logprob, version, difference }, each);
          last.style.setProperty("--v", Math.abs(strength));
          if (strength < 0) last.className = "negative";
        }
        run.append(last);
      }
      last.token.ids.push(id);
      if (logprob !== null) last.token.logprobs.push(logprob);
    }
    return run;
  });
}

function tellToken(event) {
  const token = event.target.closest("i")?.token;
  if (!token) return;
  const logprobs = token.logprobs.map((each) => number(each)).join(", "), p = number(100 * Math.exp(sum(token.logprobs)), 1);
  const learnt = token.isLearnt ? ` · ratio ${number(Math.exp(token.difference), 6)}` : "";
  const sampled = `log p ${logprobs} (p ${p}%)${learnt} · version ${token.version} · loss`;
  told.textContent = [`token ${token.at + 1}`, `id ${token.ids.join(" ")}`, JSON.stringify(token.text), token.source,
    token.turn ? `turn ${token.turn}` : "prompt", token.logprobs.length ? sampled : "no loss"].join(" · ");
}

/** Return the table of F1 call by call: 2n̂ / (n + c), of n sub-tasks n̂ solved by c calls. */
function derivation(each) {
  let rows = [], solved = 0, before = 0;
  function step(turn, what, result, isSolved) {
    solved += isSolved;
    const calls = rows.length + 1, f1 = 2 * solved / (each.num_subtasks + calls), credit = f1 - before;
    before = f1;
    rows.push(make("tr", {}, make("td", {}, turn), make("th", { scope: "row" }, ...what, make("em", {}, result)),
      ...[`${solved}/${each.num_subtasks}`, `${solved}/${calls}`, number(f1)].map((text) => make("td", {}, text)),
      make("td", { class: credit > 0 ? "good" : credit < 0 ? "bad" : "" }, (credit < 0 ? "−" : "+") + number(Math.abs(credit)))));
  }
  if (each.calls.some((call) => !call.turn)) return make("p", { class: "note" }, "This log is of an earlier version: its calls do not say what they solved.");
  for (const call of each.calls) {
    const nothing = call.error ? `error: ${call.error.replaceAll("_", " ")}` : call.irrelevant ? "irrelevant tool" : "solves nothing";
    const what = [make("code", {}, `${call.name || "unreadable"} ${call.arguments}`), make("small", {}, `→ ${call.reply}`)];
    step(call.turn, what, call.solved === null ? nothing : `solves ${call.solved + 1}`, call.solved !== null);
  }
  if (each.num_tool_calls > each.calls.length) {
    step("end", ["the ending"], each.num_solved > solved ? "as it should be" : "not as it should be", each.num_solved > solved);
  }
  if (!rows.length) return make("p", { class: "note" }, "No call: recall, precision and F1 are 0.");
  const heads = ["Turn", "Call and result", "Recall", "Precision", "F1", "Credit"].map((text) => make("th", { scope: "col" }, text));
  const table = make("table", { class: "steps" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `F1 of ${each.label}, call by call` }, table);
}

/** Return the bars of an episode's turns, on an axis from `from` to `to` seconds after the rollout began. */
function timeLine(each, from, to) {
  const kinds = ["wait", "decode", "tools"], percent = (seconds) => `${100 * seconds / (to - from)}%`;
  const totals = kinds.map((kind, place) => `${kind} ${number(sum(each.seconds.map((turn) => turn[place + 1])), 2)} s`);
  const line = make("div", { class: "time", role: "img", "aria-label": `Time line: ${totals.join(", ")}` });
  for (const [start, ...lengths] of each.seconds) {
    let at = start - from;
    lengths.forEach((length, place) => {
      const bar = make("span", { class: kinds[place] });
      [bar.style.left, bar.style.width] = [percent(at), percent(length)];
      at += length;
      line.append(bar);
    });
  }
  return [line, make("p", { class: "keys" }, ...kinds.map((kind, place) => make("span", { class: `key ${kind}` }, totals[place])))];
}

function column(each, overlay, from, to) {
  const facts = [
    `${each.num_solved} of ${each.num_subtasks} solved`, `final answer ${each.answered}`, counted(each.num_tool_calls, "call"),
    counted(each.num_turns, "turn"), counted(each.logprobs.length, "sampled token"), each.stop.replaceAll("_", " "),
    ...(each.group.length > 1 ? [`${each.group.indexOf(each) + 1} of ${each.group.length} in its group`] : []),
    ...(each.advantage === null ? [] : [`advantage ${number(each.advantage, 2)}`]),
  ];
  const asked = each.environment.sub_questions.map(([question, answer, tool], place) => make("li",
    { class: tool === null ? "no-tool" : each.solved[place] ? "solved" : "unsolved", lang: each.environment.language },
    `${question} `, make("b", {}, plain(answer)), " ", make("code", {}, tool ?? "needs no tool")));
  const prompt = data.prompts[each.prompt];
  const details = make("details", {}, make("summary", {}, `Prompt, ${counted(prompt.length, "token")}`));
  details.addEventListener("toggle", () => details.open && details.children.length < 2 && details.append(
    make("div", { class: "tokens", tabindex: 0 }, ...tokenRuns(prompt, [["prompt", 0, -1, prompt.length]], each, "source"))));
  return make("article", { class: "episode" },
    make("h4", {}, each.label, make("span", {}, ` reward ${number(each.reward)}`, each.reward.toFixed(3) === each.f1.toFixed(3) ? " = F1" : `, F1 ${number(each.f1)}`)),
    make("p", { class: "note" }, facts.join(" · ")),
    make("ol", { class: "sub-questions" }, ...asked), derivation(each),
    ...(each.seconds.length ? timeLine(each, from, to) : []), details,
    make("div", { class: `tokens ${overlay}` }, ...tokenRuns(each.tokens, each.runs, each, overlay)));
}

function drawDetail(choices) {
  const { environment, group } = open, others = environment.episodes.filter((each) => each.group[0] === each && each.label !== open.label);
  const beside = choices.beside === "group" ? group.filter((each) => each !== open)
    : others.filter((each) => choices.beside === "all" || each.label === choices.beside);
  const columns = [open, ...beside], turns = columns.flatMap((each) => each.seconds);
  const from = Math.min(...turns.map(([start]) => start)), to = Math.max(...turns.map(sum));
  const where = [environment.scenario, environment.domain].map((each) => each.replaceAll("_", " "));
  $("same").textContent = onTheSame(choices);
  $("overlay-legend").textContent = OVERLAYS[choices.overlay][0];
  detail.replaceChildren(make("p", { class: "eyebrow" }, [...where, open.split, environment.id].filter(Boolean).join(" · ")), make("h3", { lang: environment.language }, environment.question),
    make("p", { class: "answer" }, "Gold answer ", make("b", { lang: environment.language }, plain(environment.answer)),
      choices.beside && !beside.length ? " No other episode of this environment is chosen beside this one." : ""),
    make("div", { class: "columns" }, ...columns.map((each) => column(each, choices.overlay, from, to))));
  shown.forEach((each) => each.row.setAttribute("aria-current", String(each === open)));
}

// --- the choices of the reader ---

const choices = () => Object.fromEntries(new FormData(form));

function writeHash(now) {
  const set = Object.entries({ ...now, open: open?.key ?? "" }).filter(([name, value]) => value && value !== DEFAULTS[name]);
  history.replaceState(null, "", START + new URLSearchParams(set));
}

function openEpisode(each) {
  open = each;
  drawDetail(choices());
  writeHash(choices());
}

/** Draw all; if the open episode is filtered away, open another one of the list. */
function draw() {
  const now = choices();
  drawList(now);
  if (!shown.includes(open)) open = shown.includes(episodes[data.first]) ? episodes[data.first] : shown[0] ?? null;
  if (open) {
    drawDetail(now);
    list.scrollTop = open.row.offsetTop - list.clientHeight / 2;
  } else detail.replaceChildren(make("p", {}, "No episode is left; remove a filter."));
}

function readHash() {
  if (!location.hash.startsWith(START)) return false;
  const set = new URLSearchParams(location.hash.slice(START.length));
  for (const control of form.elements) {
    if (control.name) control.value = set.get(control.name) ?? DEFAULTS[control.name];
    if (control.selectedIndex === -1) control.value = DEFAULTS[control.name];
  }
  open = episodes.find((each) => each.key === set.get("open")) ?? null;
  return true;
}

for (const [name, values] of Object.entries(FILTERS)) {
  const counts = new Map();
  for (const value of episodes.flatMap(values)) counts.set(value, (counts.get(value) ?? 0) + 1);
  form.elements[name].append(...[...counts].map(([value, count]) => make("option", { value }, `${value.replaceAll("_", " ")} (${count})`)));
  form.elements[name].parentElement.hidden = counts.size < 2;
}
form.elements.beside.append(...distinct(episodes.map((each) => each.label)).map((label) => make("option", { value: label }, label)));
const hasNo = { advantage: episodes.every((each) => each.advantage === null), learner: episodes.every((each) => !each.differences.length) };
for (const [name, what] of [["advantage", "advantage"], ["ratio", "learner"], ["difference", "learner"]]) {
  if (hasNo[what]) form.elements.overlay.querySelector(`[value=${name}]`).remove();
}
const DEFAULTS = choices();
$("filters").open = innerWidth > 760;
form.addEventListener("submit", (event) => event.preventDefault());
const changed = () => { draw(); writeHash(choices()); };
form.addEventListener("input", changed);
form.addEventListener("reset", () => setTimeout(changed));
for (const kind of ["pointerover", "click"]) detail.addEventListener(kind, tellToken);
addEventListener("hashchange", () => readHash() && draw());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) return;
  const step = { j: 1, k: -1 }[event.key], select = { o: "overlay", s: "beside" }[event.key];
  if (step && shown.length) {
    const next = shown[Math.min(shown.length - 1, Math.max(0, shown.indexOf(open) + step))];
    openEpisode(next);
    next.row.focus();
  } else if (select) {
    form.elements[select].selectedIndex = (form.elements[select].selectedIndex + 1) % form.elements[select].options.length;
    changed();
  } else if (event.key === "/") {
    event.preventDefault();
    $("filters").open = true;
    form.elements.search.focus();
  }
});
if (readHash()) $("episodes").scrollIntoView();
draw();
