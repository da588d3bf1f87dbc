// Runs in the browser when the page is ready: light or dark, the switches, and the notice that the monitor has gone.
// Its arguments are Bokeh models; see page.py.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()

// Colours are this browser's own affair: nothing of this goes back to the monitor.
const set = (models, values) => {
  for (const model of models) model.setv(values, {sync: false})
}
const paint = () => {
  set(axes, {major_label_text_color: colour("faint"), axis_line_color: colour("line")})
  set(grids, {grid_line_color: colour("grid")})
  set(mains, {line_color: colour("main")})
  set(dots, {fill_color: colour("main"), line_color: colour("card")})
  set(areas, {fill_color: colour("main")})
  set(floors, {line_color: colour("floor")})
}
const dark = window.matchMedia("(prefers-color-scheme: dark)")
dark.addEventListener("change", paint)
paint()

let questions = 0 // numbered, so that the same word may be asked again
const by_id = (id) => document.getElementById(id)
by_id("log").addEventListener("change", (event) => {
  set(linear, {visible: !event.target.checked})
  set(logarithmic, {visible: event.target.checked})
})
by_id("each").addEventListener("change", (event) => {
  set(each, {visible: event.target.checked})
})
by_id("smooth").addEventListener("change", (event) => {
  set(smoothed, {y: {field: event.target.checked ? "mean" : "loss"}})
})
by_id("near").addEventListener("submit", (event) => {
  event.preventDefault()
  const word = by_id("word").value.trim()
  if (word) asked.setv({value: `${++questions} ${word}`})
})
document.documentElement.dataset.ready = "yes"
