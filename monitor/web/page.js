// Runs in the browser when the page is ready: paints it light or dark, and handles its switches and the search form.
// The arguments are Bokeh models; see page.py.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()

// Colours and visibility are local to this browser: nothing of it is sent to the monitor.
const set = (models, values) => {
  for (const model of models) model.setv(values, {sync: false})
}
const paint = () => {
  set(axes, {major_label_text_color: colour("faint"), axis_line_color: colour("line")})
  set(grids, {grid_line_color: colour("grid")})
  set(mains, {line_color: colour("main")})
  set(dots, {fill_color: colour("main"), line_color: colour("card")})
  set(areas, {fill_color: colour("main")})
  set(bias_only, {line_color: colour("bias-only")})
}
const dark = window.matchMedia("(prefers-color-scheme: dark)")
dark.addEventListener("change", paint)
paint()

let queries = 0 // numbered, so that the same word can be searched again
const by_id = (id) => document.getElementById(id)
by_id("log").addEventListener("change", (event) => {
  set(linear, {visible: !event.target.checked})
  set(logarithmic, {visible: event.target.checked})
})
by_id("each").addEventListener("change", (event) => {
  set(workers, {visible: event.target.checked})
})
by_id("smooth").addEventListener("change", (event) => {
  set(smoothed, {y: {field: event.target.checked ? "mean" : "loss"}})
})
by_id("neighbours").addEventListener("submit", (event) => {
  event.preventDefault()
  const word = by_id("word").value.trim()
  if (word) query.setv({value: `${++queries} ${word}`})
})
document.documentElement.dataset.ready = "yes"
