// Runs in the browser when the page is ready: sets light or dark colours, and handles the switches and the search form.
// The arguments are Bokeh models; see page.py.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()

// Colours and visibility are local to this browser: none of this is sent to the monitor.
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

// An empty card is not shown.
for (const [name, panel] of Object.entries(optional)) {
  const card = by_id(`card-${name}`)
  const show = () => { card.hidden = !panel.text }
  panel.properties.text.change.connect(show)
  show()
}

// Shows the name of the run, in the tab too, and the wording for word vectors or for a dense model.
const describe = () => {
  if (!about.value) return
  const {title, dense} = JSON.parse(about.value)
  document.title = title ? `${title} · Glovewire` : "Glovewire"
  document.documentElement.dataset.kind = dense ? "dense" : "words"
  set(bias_only_lines, {visible: !dense})
  for (const hover of hovers) hover.setv({tooltips: hover.tags[dense ? 1 : 0]}, {sync: false})
}
about.properties.value.change.connect(describe)
describe()
document.documentElement.dataset.ready = "yes"
