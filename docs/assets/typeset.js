// Typesets the formulas of a page: texts \( ... \) and \[ ... \] in elements of the class arithmatex.
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  const options = { displayMode: source.startsWith("\\["), throwOnError: false };
  katex.render(source.slice(2, -2), element, options);
}
