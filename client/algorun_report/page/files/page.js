"use strict";
// Draws the charts of the page with uPlot. The data stand in the page as JSON; nothing is loaded.
(() => {
  // Colours of Okabe and Ito, unchanged: the nearest two are 16 apart (CIELAB) in every kind of colour blindness. After
  // seven series the colours come again, with dashes.
  const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];
  const DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ffffff"];
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
  const BORDERS = ["solid", "dashed", "dotted", "dashed"]; // the same in the legend
  const HEIGHT = 260; // pixels of a chart, without its legend

  const page = JSON.parse(document.getElementById("data").textContent);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  let drawn = [];

  const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  const large = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" });
  const tick = (value) => (Math.abs(value) < 1e5 ? number : large).format(value);

  function duration(seconds) {
    const whole = Math.round(seconds);
    if (Math.abs(seconds) < 60) return `${number.format(seconds)} s`;
    if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
    const minutes = Math.floor((whole % 3600) / 60);
    return minutes ? `${Math.floor(whole / 3600)} h ${minutes} min` : `${Math.floor(whole / 3600)} h`;
  }

  // Steps of a time axis that people count in.
  const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];
  const STEPS = [...SECONDS, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000];
  const COUNTS = [1, 2, 5].flatMap((n) => [...Array(9).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b);

  // Without the cursor over a chart its legend shows the last value of each series, whether it is drawn or not.
  function shown(u, value, last) {
    if (value == null && u.cursor.idx == null) value = last;
    return value == null ? "–" : number.format(value);
  }

  function widest(u, values) {
    const longest = Math.max(0, ...(values ?? []).map((text) => text.length));
    return 18 + 7.5 * longest;
  }

  // Where another attempt began, and where spot instances were taken back. Two texts may be near each other.
  function marks(u) {
    const style = getComputedStyle(document.documentElement);
    for (const [n, { x, text }] of page.marks.entries()) {
      const at = u.valToPos(x, "x", true);
      if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) continue;
      u.ctx.save();
      u.ctx.strokeStyle = u.ctx.fillStyle = style.getPropertyValue("--faint");
      u.ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      u.ctx.beginPath();
      u.ctx.moveTo(at, u.bbox.top);
      u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
      u.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      u.ctx.textAlign = "left";
      u.ctx.textBaseline = "top";
      u.ctx.fillText(text, at + 4 * devicePixelRatio, u.bbox.top + (2 + 13 * (n % 2)) * devicePixelRatio);
      u.ctx.restore();
    }
  }

  // What an x axis counts: its label, and the name of its values in a legend.
  const AXES = {
    time: ["time since the job's begin", "time"],
    order: ["number of the value", "value no."],
    step: ["step of the training", "step"],
    epoch: ["epoch", "epoch"],
  };
  const axisChoice = document.getElementById("axis");

  function draw(holder, given) {
    const chart = (axisChoice?.value === "time" && given.over_time) || given;
    const note = holder.parentElement.querySelector(".note");
    if (note) note.textContent = chart.note;
    const style = getComputedStyle(document.documentElement);
    const [text, grid] = [style.getPropertyValue("--text"), style.getPropertyValue("--grid")];
    const colours = scheme.matches ? DARK : LIGHT;
    const timed = chart.axis === "time";
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const options = {
      width: holder.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: chart.axis }, focus: { prox: 24 }, drag: { x: true, y: false } },
      focus: { alpha: 0.3 },
      scales: { x: { time: false }, y: chart.percent ? { range: [0, 100] } : {} },
      legend: { markers: { dash: (u, n) => BORDERS[Math.floor((n - 1) / colours.length) % BORDERS.length] } },
      hooks: timed ? { draw: [marks] } : {},
      axes: [
        {
          ...axis,
          label: AXES[chart.axis][0],
          labelSize: 18,
          labelGap: 0,
          size: 34,
          labelFont: "12px system-ui, sans-serif",
          incrs: timed ? STEPS : COUNTS,
          space: timed ? 70 : 60,
          values: (u, splits) => splits.map((each) => (timed ? duration(each) : number.format(each))),
        },
        { ...axis, size: widest, values: (u, splits) => splits.map(tick) },
      ],
      series: [
        {
          label: AXES[chart.axis][1],
          value: (u, v) => (v == null ? "last" : timed ? duration(v) : number.format(v)),
        },
        ...chart.labels.map((label, n) => ({
          label,
          stroke: colours[n % colours.length],
          dash: DASHES[Math.floor(n / colours.length) % DASHES.length],
          width: 1.5,
          spanGaps: true,
          value: (u, v) => shown(u, v, chart.last[n]),
        })),
      ],
    };
    return new uPlot(options, [chart.x, ...chart.columns], holder);
  }

  // -- what ranks did over time ----------------------------------------------------------------------------------

  // Colours from little to much; each step is darker (by day) or lighter (by night) than the one before.
  const SCALE_LIGHT = [[238, 243, 248], [158, 202, 225], [49, 130, 189], [8, 48, 107]];
  const SCALE_DARK = [[35, 42, 50], [33, 85, 128], [86, 160, 211], [222, 240, 255]];
  const LANES = { saving: "#d55e00", evaluation: "#cc79a7" }; // above the ranks: when any of them saved or evaluated

  function colour(share) {
    const scale = scheme.matches ? SCALE_DARK : SCALE_LIGHT;
    const at = Math.min(1, Math.max(0, share)) * (scale.length - 1);
    const low = Math.min(scale.length - 2, Math.floor(at));
    const mixed = scale[low].map((each, n) => Math.round(each + (scale[low + 1][n] - each) * (at - low)));
    return `rgb(${mixed.join(" ")})`;
  }

  // The percents of one rank for a choice of the reader: an activity, or what follows from all of them.
  // Own work belongs to steps: null where the host made none.
  function percents(heat, { host, shares }, choice) {
    const at = heat.names.indexOf(choice);
    if (at >= 0) return shares[at];
    const taken = choice === "own work" ? heat.aside.map((name) => heat.names.indexOf(name)) : heat.names.map((_, n) => n);
    const rest = (w) => Math.max(0, 100 - taken.reduce((sum, n) => sum + shares[n][w], 0));
    return host.begin.map((_, w) => (choice === "own work" && !host.steps[w] ? null : rest(w)));
  }

  function drawHeat(holder, heat) {
    const style = getComputedStyle(document.documentElement);
    const [text, grid] = [style.getPropertyValue("--text"), style.getPropertyValue("--grid")];
    const select = document.getElementById("activity");
    const lanes = Object.keys(LANES).filter((name) => heat.names.includes(name));
    const rows = heat.hosts.flatMap((host) => host.ranks.map((rank, n) => ({ host, rank, shares: host.shares[n] })));
    const head = page.marks.length ? 30 : 0; // pixels above the rows for the texts of the marks
    const size = Math.max(2, Math.min(22, Math.floor(480 / rows.length))); // pixels of a row
    const tall = Math.max(1, Math.ceil(14 / size)); // rows that a lane, or a label, takes
    const first = lanes.length * tall; // the row of the first rank
    const count = first + rows.length;
    const lane = (name, host, w) =>
      Math.max(...host.shares.map((shares) => shares[heat.names.indexOf(name)][w]));
    const ends = heat.hosts.flatMap((host) => [...host.begin, ...host.end]);
    const x = [...new Set(ends)].sort((a, b) => a - b);
    let values, most;

    function choose() {
      values = rows.map((row) => percents(heat, row, select.value));
      const largest = values.reduce((found, row) => row.reduce((a, b) => Math.max(a, b), found), 0);
      most = Math.max(5, Math.ceil(largest / 5) * 5);
      document.getElementById("most").textContent = `${most} %`;
      const key = document.querySelector(".key canvas");
      const pen = key.getContext("2d");
      for (let n = 0; n < key.width; n++) {
        pen.fillStyle = colour(n / (key.width - 1));
        pen.fillRect(n, 0, 1, key.height);
      }
    }

    function paint(u) {
      const edge = (row) => u.valToPos(row - 0.5, "y", true);
      const [left, right] = [u.bbox.left, u.bbox.left + u.bbox.width];
      const cell = (host, w, row, next, fill) => {
        const from = Math.max(left, u.valToPos(host.begin[w], "x", true));
        const to = Math.min(right, u.valToPos(host.end[w], "x", true));
        if (to <= from) return;
        const [top, bottom] = [Math.round(edge(row)), Math.round(edge(next))];
        const gap = bottom - top > 6 * devicePixelRatio ? 1 : 0;
        u.ctx.fillStyle = fill;
        u.ctx.fillRect(Math.floor(from), top, Math.max(1, Math.ceil(to) - Math.floor(from)), bottom - top - gap);
      };
      u.ctx.save();
      for (const host of heat.hosts)
        for (const [n, name] of lanes.entries())
          for (let w = 0; w < host.begin.length; w++) if (lane(name, host, w)) cell(host, w, n * tall, (n + 1) * tall, LANES[name]);
      for (const [n, row] of rows.entries())
        for (const [w, value] of values[n].entries()) if (value !== null) cell(row.host, w, first + n, first + n + 1, colour(value / most));
      u.ctx.restore();
    }

    // Below the map: the cell under the cursor, in words.
    function read(u) {
      const { left, top } = u.cursor;
      const row = Math.round(u.posToVal(top, "y")) - first;
      const at = u.posToVal(left, "x");
      const host = rows[row]?.host;
      const w = host && left >= 0 && top >= 0 ? host.begin.findIndex((begin, n) => begin <= at && at < host.end[n]) : -1;
      const cell = document.getElementById("cell");
      cell.textContent =
        w < 0
          ? ""
          : `rank ${rows[row].rank} on ${host.host}, ${duration(host.begin[w])} to ${duration(host.end[w])}: ` +
            `${values[row][w] ?? "–"} %, ${host.steps[w]} steps`;
    }

    const labels = (u, splits) =>
      splits.map((at) => (at < first ? lanes[Math.floor(at / tall)] : `rank ${rows[at - first].rank}`));
    const named = [...lanes.map((_, n) => (n + 0.5) * tall - 0.5), ...rows.map((_, n) => first + n).filter((n) => (n - first) % tall === 0)];
    const axis = { stroke: text, ticks: { stroke: grid, width: 1 } };
    const options = {
      width: holder.clientWidth,
      height: head + count * size + 60,
      cursor: { sync: { key: "time", scales: ["x", null] }, drag: { x: true, y: false }, points: { show: false } },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: [-0.5 - head / size, count - 0.5], dir: -1 } },
      hooks: { draw: [paint, marks], setCursor: [read] },
      axes: [
        {
          ...axis,
          grid: { show: false },
          label: "time since the job's begin",
          labelSize: 18,
          labelGap: 0,
          size: 34,
          labelFont: "12px system-ui, sans-serif",
          incrs: STEPS,
          space: 70,
          values: (u, splits) => splits.map(duration),
        },
        { ...axis, grid: { show: false }, size: widest, splits: () => named, values: labels },
      ],
      series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
    };
    choose();
    const made = new uPlot(options, [x, x.map(() => null)], holder);
    select.onchange = () => {
      choose();
      made.redraw(false);
    };
    return made;
  }

  // The charts in the window at once, the others one after the other while the page can be read already.
  let round = 0;
  let heat = null;
  function drawAll() {
    for (const each of drawn) each.destroy();
    drawn = [];
    heat?.destroy();
    heat = null;
    drawFrom([...document.querySelectorAll(".chart")], ++round);
  }

  function drawFrom(holders, mine) {
    if (mine !== round) return; // the colours have changed in between
    let holder = holders[drawn.length];
    while (holder) {
      drawn.push(draw(holder, page.charts[drawn.length]));
      holder = holders[drawn.length];
      if (holder && holder.getBoundingClientRect().top > innerHeight) break;
    }
    document.documentElement.dataset.charts = drawn.length; // for tests: how many charts are drawn
    if (page.heat && !heat) heat = drawHeat(document.querySelector(".heat"), page.heat);
    if (holder) setTimeout(drawFrom, 0, holders, mine);
  }

  drawAll();
  scheme.addEventListener("change", drawAll);
  axisChoice?.addEventListener("change", drawAll);
  addEventListener("resize", () => {
    for (const each of drawn) each.setSize({ width: each.root.parentElement.clientWidth, height: HEIGHT });
    heat?.setSize({ width: heat.root.parentElement.clientWidth, height: heat.height });
  });
})();
