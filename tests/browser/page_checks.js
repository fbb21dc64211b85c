// What tests ask of a page, as `globalThis.checks`. Added to every page before its own scripts.

globalThis.checks = {
  /** Elements that end right of the screen, and that nothing scrolls to. */
  tooWide() {
    const scrolls = (node) => node && (getComputedStyle(node).overflowX !== "visible" || scrolls(node.parentElement));
    return [...document.querySelectorAll("body *")]
      .filter((node) => node.checkVisibility() && node.getBoundingClientRect().right > innerWidth + 1)
      .filter((node) => !scrolls(node.parentElement))
      .map((node) => `${node.tagName}.${node.className} ${node.textContent.trim().slice(0, 40)}`)
      .slice(0, 5);
  },

  /** Controls that are too low for a finger. */
  tooSmall() {
    return [...document.querySelectorAll("button, .button, input, select, summary, nav a")]
      .filter((node) => node.checkVisibility() && !node.matches("[type=checkbox], [type=hidden], .hidden"))
      .map((node) => [node, node.getBoundingClientRect().height])
      .filter(([, height]) => height < 43.5)
      .map(([node, height]) => `${node.tagName}.${node.className} ${node.textContent.trim().slice(0, 40)} ${height}`);
  },

  /** The text of the page's main part without times and the labels of axes, which depend on the hour and the width. */
  text() {
    const copy = document.querySelector("main").cloneNode(true);
    for (const each of copy.querySelectorAll("time, .x, .y, [popover]")) each.remove();
    return copy.textContent;
  },

  /** What axe finds. */
  async axe() {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    const place = (node) => `${node.html.slice(0, 160)} ${node.failureSummary}`;
    return violations.map((each) => `${each.id}: ${each.nodes.slice(0, 3).map(place).join(" | ")}`);
  },

  /** The largest contentful paint in milliseconds, and the sum of layout shifts without an input before them. */
  seen: { lcp: 0, shift: 0 },
};

const { seen } = globalThis.checks;
const onPaint = (list) => { for (const each of list.getEntries()) seen.lcp = Math.max(seen.lcp, each.startTime); };
const onShift = (list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) seen.shift += each.value; };
new PerformanceObserver(onPaint).observe({ type: "largest-contentful-paint", buffered: true });
new PerformanceObserver(onShift).observe({ type: "layout-shift", buffered: true });
