"use strict";
// Draws the charts and turns the pages of the table. Nothing is loaded, and nothing is changed in the
// numbers: all of them are in the page.
(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const byId = (id) => document.getElementById(id);
  const MANY = 400; // more marks than this are painted, not kept as elements

  function draw(target, spec, values) {
    target.replaceChildren();
    if (!values.length) {
      target.textContent = spec === "failures" ? "No trial failed." : "Nothing to show.";
      return Promise.resolve();
    }
    // Vega tells a screen reader the description, in place of the label.
    const description = target.getAttribute("aria-label");
    const filled = { ...payload.specs[spec], description, data: { values } };
    const byRow = filled.usermeta && filled.usermeta.rows;
    if (byRow) {
      filled.height = byRow.each * new Set(values.map((value) => value[byRow.field])).size;
      delete filled.usermeta;
    }
    const renderer = values.length > MANY ? "canvas" : "svg";
    const options = { actions: false, renderer, ast: false, tooltip: { theme: "light" } };
    return vegaEmbed(target, filled, options);
  }

  // ---- the table, a page at a time

  // Of a large cache only the first rows are elements; the rest is text until a page of it is shown,
  // something is printed, or it is found.
  const table = byId("numbers");
  const bodies = [...table.tBodies];
  const later = [...table.querySelectorAll("script.later")];
  const size = bodies[0].rows.length;
  const total = payload.keys.length;
  let wanted = null; // places of the rows that fit what is looked for; null: all
  let texts = null;
  let page = 0;

  function bodyOf(number) {
    if (!bodies[number]) {
      const made = document.createElement("tbody");
      made.innerHTML = later[number - (bodies.length - later.length)].textContent;
      made.hidden = true;
      table.append(made);
      bodies[number] = made;
    }
    return bodies[number];
  }
  bodies.length += later.length;

  const rowOf = (place) => bodyOf(Math.floor(place / size)).rows[place % size];

  function textOf(place) {
    if (!texts) {
      const first = bodies.slice(0, bodies.length - later.length);
      texts = first.flatMap((body) => [...body.rows].map((row) => row.textContent.toLowerCase()));
      const plain = (html) => html.replace(/<[^>]*>/g, " ").toLowerCase();
      later.forEach((script) => texts.push(...script.textContent.split("<tr>").slice(1).map(plain)));
    }
    return texts[place];
  }

  function showPage() {
    const count = wanted ? wanted.length : total;
    const pages = Math.max(1, Math.ceil(count / size));
    page = Math.min(Math.max(page, 0), pages - 1);
    const at = [...Array(Math.min(size, count - page * size)).keys()].map((step) => page * size + step);
    const shown = wanted ? at.map((step) => wanted[step]) : at;
    const rows = new Set(shown.map(rowOf));
    bodies.forEach((body) => {
      if (!body) return;
      const mine = [...body.rows].filter((row) => rows.has(row));
      body.hidden = !mine.length;
      if (mine.length) [...body.rows].forEach((row) => (row.hidden = !rows.has(row)));
    });
    const which = pages === 1 ? "" : `, page ${page + 1} of ${pages}`;
    byId("place").textContent = `${count} ${count === 1 ? "problem" : "problems"}${which}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
    byId("previous").hidden = byId("next").hidden = pages === 1;
    const ratios = shown.map((place) => [place, payload.keys[place]]).filter(([, key]) => key.ratio);
    // What all of them have in common would only take the room of the chart on a phone.
    const words = ratios.map(([, key]) => key.name.split(" "));
    const shared = words.length > 1 ? words[0].slice(1).filter((word) => words.every((w) => w.includes(word))) : [];
    byId("speedups-shared").textContent = shared.length ? `, all of them ${shared.join(" ")}` : "";
    const short = (name) => name.split(" ").filter((word) => !shared.includes(word)).join(" ");
    return draw(byId("speedups"), "speedup", ratios.map(([place, key]) => ({
      problem: `${place + 1}: ${short(key.name)}`, runs: key.runs,
      ratio: key.ratio[0], low: key.ratio[1], high: key.ratio[2],
    })));
  }

  function find(text) {
    const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const all = [...Array(total).keys()];
    wanted = words.length ? all.filter((place) => words.every((w) => textOf(place).includes(w))) : null;
    page = 0;
    showPage();
  }

  function showAll() {
    for (let number = 0; number < bodies.length; number += 1) {
      [...bodyOf(number).rows].forEach((row) => (row.hidden = false));
    }
  }

  // ---- one problem

  function element(name, text, parent) {
    const made = document.createElement(name);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function numbers(parent, title, heads, lines) {
    const details = element("details", null, parent);
    element("summary", `Numbers: ${title}`, details);
    const scroll = element("div", null, details);
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `${title}, numbers`);
    const table = element("table", null, scroll);
    const head = element("tr", null, element("thead", null, table));
    heads.forEach((text) => (element("th", text, head).scope = "col"));
    const body = element("tbody", null, table);
    lines.forEach((line) => {
      const row = element("tr", null, body);
      line.forEach((cell) => (element("td", String(cell), row).className = "n"));
    });
  }

  function chart(parent, title, spec, values, heads, lines) {
    const box = element("div", null, parent);
    element("h4", title, box);
    const target = element("div", null, box);
    target.className = "chart";
    target.setAttribute("role", "img");
    target.setAttribute("aria-label", `${title}; the numbers follow.`);
    numbers(box, title, heads, lines);
    return [target, spec, values];
  }

  function facts(parent, place) {
    const heads = table.tHead.rows[0].cells;
    const cells = [...rowOf(place).cells].map((cell) => cell.textContent);
    if (cells.length !== heads.length) return; // no config worked
    const [, , runs, ratio, least, most, ours, oursSpan, vendor, vendorSpan] = cells;
    const list = element("dl", null, parent);
    list.className = "key";
    const fact = (name, text) => {
      element("dt", name, list);
      element("dd", text, list);
    };
    fact("runs", runs);
    fact("Triton", `${ours} us (95 %: ${oursSpan})`);
    if (vendor !== "-") {
      fact("vendor", `${vendor} us (95 %: ${vendorSpan})`);
      fact("ratio", `${ratio} (${least} to ${most}); above 1 Triton is faster`);
    }
    fact("best config", cells[heads.length - 2]);
  }

  function showKey(place) {
    const key = payload.keys[place];
    if (!key) return Promise.resolve();
    byId("which").value = place + 1;
    byId("permalink").href = `#key-${place + 1}`;
    const detail = byId("detail");
    detail.replaceChildren();
    element("h3", key.name, detail);
    facts(detail, place);
    const failed = key.failures.map(([status, number]) => `${number} ${status}`).join(", ");
    element("p", `${key.trials} trials; failed: ${failed || "none"}. On ${key.gpu}.`, detail);
    const charts = element("div", null, detail);
    charts.className = "charts";
    const fastest = key.curve.length ? key.curve[key.curve.length - 1][1] : 1;
    const curve = key.curve.map(([trial, us]) => ({ trial, us }));
    if (curve.length) curve.push({ trial: key.trials, us: fastest });
    const cells = (list) => list.map(([x, y, us, number]) => ({ x, y, us, number, slowdown: us / fastest }));
    const heat = (title, spec, x, y, list) => chart(charts, title, spec, cells(list),
      [y, x, "us", "out of"], list.map(([vx, vy, us, number]) => [vy, vx, us.toFixed(3), number]));
    const drawn = [
      chart(charts, "Best so far", "curve", curve, ["trial", "us"],
        key.curve.map(([trial, us]) => [trial, us.toFixed(3)])),
      heat("Tiles against time", "tiles", "block_n", "block_m", key.tiles),
      heat("Steps along K against time", "pipeline", "block_k", "num_stages", key.pipeline),
      chart(charts, "What matters", "importance",
        key.importance.map(([parameter, share]) => ({ parameter, share })), ["parameter", "share"],
        key.importance.map(([parameter, share]) => [parameter, `${(100 * share).toFixed(1)} %`])),
      chart(charts, "Kernel variants", "variants",
        key.variants.map(([variant, us]) => ({ variant, slowdown: us / fastest })),
        ["variant", "fastest, us", "trials"], key.variants.map(([name, us, n]) => [name, us.toFixed(3), n])),
      chart(charts, "Failures", "failures",
        key.failures.map(([status, trials]) => ({ status, trials })), ["status", "trials"], key.failures),
    ];
    return Promise.all(drawn.map((parts) => draw(...parts)));
  }

  function followHash() {
    const found = /^#key-(\d+)$/.exec(location.hash);
    if (!found) return Promise.resolve();
    const done = showKey(Number(found[1]) - 1);
    byId("one").scrollIntoView();
    return done;
  }

  byId("previous").addEventListener("click", () => { page -= 1; showPage(); });
  byId("next").addEventListener("click", () => { page += 1; showPage(); });
  byId("find").addEventListener("input", (event) => find(event.target.value));
  byId("which").addEventListener("change", (event) => showKey(Number(event.target.value) - 1));
  window.addEventListener("hashchange", followHash);
  window.addEventListener("beforeprint", showAll);
  window.addEventListener("afterprint", showPage);

  async function start() {
    const atOnce = (target) => target && target.getBoundingClientRect().top < innerHeight;
    const mark = (name) => (document.documentElement.dataset[name] = "yes");
    await showPage();
    if (/^#key-/.test(location.hash)) await followHash();
    const rest = [];
    for (const chart of payload.charts) {
      const target = byId(chart.id);
      if (atOnce(target)) await draw(target, chart.spec, chart.values);
      else if (target) rest.push([target, chart.spec, chart.values]);
    }
    mark("ready");
    for (const parts of rest) {
      await new Promise((resolve) => setTimeout(resolve)); // let clicks and keys come between
      await draw(...parts);
    }
    if (!byId("detail").childElementCount) await showKey(0);
    mark("drawn");
  }
  start();
})();
