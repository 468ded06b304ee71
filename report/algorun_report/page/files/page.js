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

  function draw(holder, chart) {
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
          label: timed ? "time since the job's begin" : "number of the value",
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
          label: timed ? "time" : "value no.",
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

  // The charts in the window at once, the others one after the other while the page can be read already.
  let round = 0;
  function drawAll() {
    for (const each of drawn) each.destroy();
    drawn = [];
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
    if (holder) setTimeout(drawFrom, 0, holders, mine);
  }

  drawAll();
  scheme.addEventListener("change", drawAll);
  addEventListener("resize", () => {
    for (const each of drawn) each.setSize({ width: each.root.parentElement.clientWidth, height: HEIGHT });
  });
})();
