"""Text that is hard to read before what lies behind it: https://www.w3.org/TR/WCAG22/#contrast-minimum."""

UNREADABLE = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const once = (compute, known = new Map()) => (key) => {
    if (!known.has(key)) known.set(key, compute(key));
    return known.get(key);
  };
  const parts = once((color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  });
  const over = ([r, g, b, alpha], below) =>
    [r, g, b].map((part, index) => (part * alpha + below[index] * (255 - alpha)) / 255);
  const behind = once((each) =>
    each ? over(parts(getComputedStyle(each).backgroundColor), behind(each.parentElement)) : [255, 255, 255]);
  const luminance = (color) =>
    color.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (each) => {
    const { color, fill } = getComputedStyle(each);
    const below = behind(each);
    const [low, high] = [below, over(parts(each.ownerSVGElement ? fill : color), below)]
      .map(luminance).sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
  };
  return [...document.querySelectorAll("body *")]
    .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) &&
      !["SCRIPT", "STYLE", "TITLE", "title"].includes(each.tagName) && each.getBoundingClientRect().width)
    .filter((each) => contrast(each) < 4.5)
    .map((each) => `${each.tagName} ${each.className} ${each.textContent.trim()}: ${contrast(each).toFixed(2)}`);
})()"""
"""Expression for a page: its texts whose contrast is less than 4.5 to 1."""
