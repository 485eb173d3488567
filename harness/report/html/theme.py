"""The page's style sheet: colours for a light and a dark ground, hatches, markers, narrow screens, print.

Stages share the table of colours with the pictures. Every stage, wait, variant and verdict has a class; geometry stands
in SVG attributes. So the page needs no ``style`` attribute, and its security policy can refuse all of them.
"""

from __future__ import annotations

from harness.core.trace import Stage
from harness.report.style import STAGE_COLOURS

# Stages whose colour would vanish on a dark ground get a lighter one there.
_DARK_STAGES = {
    Stage.GENERATE: "#2B7FC0",
    Stage.SCORE: "#A6DBF7",
    Stage.WEIGHT_PUBLISH: "#2E8B6C",
    Stage.WEIGHT_TRANSFER: "#12B98C",
    Stage.UPDATE: "#E4702A",
    Stage.CHECKPOINT: "#9A9A9A",
    Stage.SAVE_POLICY: "#B08D46",
    Stage.OFFLOAD: "#9474C4",
    Stage.PREPARE_BATCH: "#D9B870",
    Stage.OLD_LOGPROBS: "#D8CE4A",
}
# Okabe and Ito's colours, darkened to a contrast of at least 3 with white; the second list is for a dark ground.
_VARIANTS = (
    "#0072B2", "#C94F00", "#00805E", "#A8457F", "#946800", "#5D5D5D", "#6B4FBB", "#7C4A21", "#1B7F9E", "#6D7A00",
)  # fmt: skip
_DARK_VARIANTS = (
    "#56B4E9", "#F58A45", "#2FCB9F", "#E59AC6", "#E6B03A", "#B8B8B8", "#B09CF2", "#CF9A6C", "#6CCBE6", "#C3CF4A",
)  # fmt: skip
MARKER_PATHS = (
    "M0-4A4 4 0 1 0 0 4A4 4 0 1 0 0-4Z",  # circle
    "M-3.5-3.5H3.5V3.5H-3.5Z",  # square
    "M0-4.8L4.8 0L0 4.8L-4.8 0Z",  # diamond
    "M0-4.6L4.4 3.4H-4.4Z",  # triangle
    "M0 4.6L4.4-3.4H-4.4Z",  # triangle on its tip
    "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",  # plus
    "M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5Z",  # pentagon
    "M0-5L1.5-1.6L5-1.2L2.3 1.2L3.1 4.8L0 2.9L-3.1 4.8L-2.3 1.2L-5-1.2L-1.5-1.6Z",  # star
)


def stage_class(stage: Stage) -> str:
    """Return the class of a stage's bars; all waits share one."""
    return "wait" if stage.is_wait else f"st-{stage.value}"


def variant_class(index: int) -> str:
    """Return the class of a variant's lines; the colours begin again after the tenth."""
    return f"v{index % len(_VARIANTS)}"


def marker_id(index: int) -> str:
    """Return the id of a variant's marker."""
    return f"m{index % len(MARKER_PATHS)}"


def colour_rules() -> str:
    """Return the CSS variables and classes of stages and variants, for a light and a dark ground."""
    light = "".join(f"--st-{stage.value}:{colour};" for stage, colour in STAGE_COLOURS.items())
    light += "".join(f"--v{index}:{colour};" for index, colour in enumerate(_VARIANTS))
    dark = "".join(f"--st-{stage.value}:{colour};" for stage, colour in _DARK_STAGES.items())
    dark += "".join(f"--v{index}:{colour};" for index, colour in enumerate(_DARK_VARIANTS))
    rules = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    rules += "".join(f".st-{stage.value}{{fill:var(--st-{stage.value})}}" for stage in STAGE_COLOURS)
    rules += "".join(f".v{index}{{--c:var(--v{index})}}" for index in range(len(_VARIANTS)))
    return rules + f".st-{Stage.WEIGHT_VERIFY.value}{{fill:url(#hatch-verify)}}"


_BASE = """
:root{color-scheme:light dark;--back:var(--ground);--shade:#8a93a080;
--ground:#fafaf8;--surface:#ffffff;--ink:#1c2126;--muted:#565f69;--rule:#dfe2e6;
--grid:#e9ebee;--accent:#1b5e99;--accent-soft:#e8f0f8;--wait-ground:#eceef0;--wait-line:#b3b9c0;--verify-line:#3d6b1f;
--verify-ground:#d8f0c0;--nobody:#eaa3a0;--warn:#7a4b00;--warn-soft:#fff4df;--good:#1d6b3f;
--good-soft:#e5f4ea;--bad:#a3301b;--bad-soft:#fdebe6;--band:#dfe9f2;--version:#1c2126}
@media screen and (prefers-color-scheme:dark){:root{--ground:#131619;--surface:#1a1e22;--ink:#e5e8eb;--muted:#a2acb6;
--rule:#343b42;--grid:#2a3036;--accent:#8cc0ee;--accent-soft:#1d2c3a;--wait-ground:#2a3036;--wait-line:#59626b;
--verify-line:#a6d977;--verify-ground:#33491f;--nobody:#8c3a38;--warn:#f0c674;--warn-soft:#332a17;
--good:#86d3a3;--good-soft:#19301f;--bad:#ff9e8a;--bad-soft:#3a201b;--band:#26394a;--version:#e5e8eb}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-padding-top:1rem}
body{margin:0;background:var(--ground);color:var(--ink);font:1rem/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
a{color:var(--accent);text-underline-offset:.18em}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px;border-radius:3px}
.skip{position:absolute;left:-999px;top:0;padding:.6rem 1rem;background:var(--surface);z-index:2}
.skip:focus{left:0}
.definitions{position:absolute}
.frame{max-width:76rem;margin:0 auto;padding:0 1.25rem}
header{padding:2.5rem 0 1.5rem}
.eyebrow{margin:0;color:var(--muted);font-size:.875rem;letter-spacing:.02em}
h1{margin:.2rem 0 .4rem;font-size:2.1rem;line-height:1.2;font-weight:680;letter-spacing:-.015em}
h2{margin:0 0 .3rem;font-size:1.5rem;line-height:1.25;font-weight:660;letter-spacing:-.01em}
h3{margin:0 0 .9rem;font-size:1.2rem;line-height:1.3;font-weight:650}
.lead{max-width:46rem;margin:0;font-size:1.06rem}
.note,.origin{max-width:50rem;margin:.5rem 0 0;color:var(--muted);font-size:.875rem;line-height:1.5}
main{padding-bottom:4rem}
article{margin:0 0 3rem}
article+article{padding-top:2.5rem;border-top:2px solid var(--rule)}
section{margin:2.6rem 0 0}
nav{margin:1.4rem 0 0;font-size:.9rem}
nav ol{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:0;padding:0}
nav li{margin:0}
nav .title{margin:0 0 .3rem;color:var(--muted);font-size:.8rem}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.headline{max-width:50rem;margin:0 0 .5rem;font-size:1.25rem;line-height:1.4;font-weight:620}
.lever{max-width:50rem;margin:1.1rem 0;padding:.8rem 1.1rem;border-radius:8px;background:var(--accent-soft)}
.says-list{max-width:50rem;margin:1.2rem 0 0;padding:0;list-style:none}
.says-list li{margin:0 0 .75rem;padding:.1rem 0 .1rem 1rem;border-left:3px solid var(--accent)}
.plain-list{max-width:50rem;margin:.5rem 0;padding-left:1.2rem;font-size:.94rem}
.plain-list li{margin:0 0 .45rem}
.mind{max-width:50rem;margin:1.4rem 0 0;padding:.8rem 1.1rem;border-radius:8px;background:var(--warn-soft);
font-size:.94rem}
.mind strong{color:var(--warn)}
.mind ul{margin:.35rem 0 0;padding-left:1.2rem}
figure{--back:var(--surface);margin:1.3rem 0 0;
padding:1.1rem 1.25rem 1.2rem;background:var(--surface);border:1px solid var(--rule);
border-radius:10px}
figcaption{margin:0 0 .8rem;max-width:50rem;font-size:.94rem;line-height:1.5}
figcaption .says{color:var(--muted)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:0 0 .9rem;padding:0;list-style:none;font-size:.84rem}
.legend li{display:flex;align-items:center;gap:.4rem}
.swatch{flex:none;overflow:visible}
svg text{font-size:12px;fill:var(--muted);font-family:inherit}
svg rect{shape-rendering:crispEdges}
.wait{fill:url(#hatch-wait)}
.wait-ground{fill:var(--wait-ground)}.wait-line{stroke:var(--wait-line);stroke-width:.8}
.verify-ground{fill:var(--verify-ground)}.verify-line{stroke:var(--verify-line);stroke-width:.7}
.nobody{fill:var(--nobody)}
.rows{display:grid;grid-template-columns:fit-content(13rem) minmax(0,1fr) 7rem;gap:.3rem .9rem;
align-items:center;font-size:.875rem}
.rows .name{text-align:right;line-height:1.3}
.rows .head{grid-column:1/-1;margin:.7rem 0 .1rem;font-weight:620}
.rows .head:first-child{margin-top:0}
.rows .value{white-space:nowrap}
.rows .sub{color:var(--muted)}
.timeline .name{padding-top:13px}.timeline{grid-template-columns:fit-content(13rem) minmax(0,1fr)}
.timeline .value,.timeline .axis-end{display:none}
.timeline{padding-right:1.6rem}figure+.scroll{margin-top:1.4rem}
.bar,.area,.axis,.lane{display:block;overflow:visible}
.ground{fill:var(--grid)}
.line{fill:none;stroke:var(--c,var(--ink));stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.band{fill:var(--c);opacity:.16}
.mark{fill:var(--c)}
.grid{stroke:var(--grid);stroke-width:1}
.tick{stroke:var(--muted);stroke-width:1}
.level{stroke:var(--muted);stroke-width:1.2;stroke-dasharray:2 4}
.whisker{stroke:var(--ink);stroke-width:1.6}
.wall{stroke:var(--ink);stroke-width:2.5}
.version{fill:var(--version)}
svg .version-number{fill:var(--ink);font-size:11px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,23rem),1fr));gap:1.6rem 2rem}
.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr))}
.panel-title{margin:0;font-weight:620;font-size:.94rem}
.unit{margin:0 0 .5rem;color:var(--muted);font-size:.8rem}
.plot{display:grid;grid-template-columns:3.4rem minmax(0,1fr);gap:.5rem;padding:.4rem 1.2rem 0 0}
.scroll{overflow-x:auto;margin:.6rem 0 0;
background:linear-gradient(to right,var(--back) 40%,transparent) left/3rem 100% local,
linear-gradient(to left,var(--back) 40%,transparent) right/3rem 100% local,
linear-gradient(to right,var(--shade),transparent)
left/1rem 100%,linear-gradient(to left,var(--shade),transparent) right/1rem 100%;background-repeat:no-repeat;
scrollbar-width:thin;scrollbar-color:var(--muted) transparent}
table{overflow-wrap:normal;border-collapse:collapse;font-size:.875rem;line-height:1.4;min-width:min(100%,24rem)}
caption{text-align:left;font-weight:620;padding:0 0 .35rem}
th,td{padding:.32rem .9rem .32rem 0;text-align:left;vertical-align:top;font-weight:400;
border-bottom:1px solid var(--grid)}
thead th{color:var(--muted);font-weight:600;border-bottom:1px solid var(--rule);vertical-align:bottom}
td.n,th.n{text-align:right;white-space:nowrap;padding:.32rem 0 .32rem 1.2rem}
tbody th{white-space:nowrap}
.wrap tbody th,.wrap td{white-space:normal;overflow-wrap:anywhere}
details{margin:1rem 0 0}
summary{cursor:pointer;color:var(--accent);font-size:.9rem;width:fit-content}
details[open]>summary{margin-bottom:.5rem}
.chip{display:inline-block;padding:.05rem .55rem;border-radius:99px;border:1px solid currentColor;font-size:.8rem;
font-weight:600;white-space:nowrap}
.slower{color:var(--bad);background:var(--bad-soft)}
.faster{color:var(--good);background:var(--good-soft)}
.equivalent{color:var(--accent);background:var(--accent-soft)}
.inconclusive,.not-comparable{color:var(--muted)}
.threshold{fill:var(--band)}
.estimate{fill:var(--accent)}.interval{stroke:var(--accent);stroke-width:2.2}
.name.primary{font-weight:650}
.forest{grid-template-columns:fit-content(11rem) minmax(0,1fr) auto auto}
.exchange{margin:1rem 0 0;padding:.9rem 1.1rem;background:var(--surface);border:1px solid var(--rule);
border-radius:10px}
.exchange p{margin:0 0 .3rem;font-size:.875rem;color:var(--muted)}
pre{margin:0 0 .7rem;padding:.5rem .7rem;background:var(--ground);border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;font:.875rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre:last-child{margin-bottom:0}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.led-trained{fill:var(--v0)}.led-unused{fill:var(--wait-line)}.led-dropped{fill:var(--v1)}.led-failed{fill:var(--v3)}
.led-discarded{fill:var(--v2)}
.lag-bar{fill:var(--v0)}
footer{margin:3rem 0 0;padding:1.2rem 0 2.5rem;border-top:1px solid var(--rule);color:var(--muted);font-size:.84rem}
"""
_NARROW = """
@media (max-width:44rem){.frame{padding:0 .9rem}header{padding:1.5rem 0 1rem}h1{font-size:1.6rem}h2{font-size:1.3rem}
figure{padding:.9rem .8rem 1rem;margin-left:-.3rem;margin-right:-.3rem}
.rows{grid-template-columns:minmax(0,1fr) minmax(4.6rem,auto);gap:.1rem .6rem}
.rows .name{grid-column:1/-1;text-align:left;margin-top:.35rem}
.rows .axis-row{grid-column:1}
.rows .name:empty{display:none}
.rows.short{grid-template-columns:fit-content(6rem) minmax(0,1fr) minmax(4.2rem,auto);font-size:.8rem}
.rows.short .name,.timeline .name{grid-column:auto;margin-top:0}
.rows.short .name:empty,.rows.timeline .name:empty{display:block}
.rows.short .axis-row,.rows.timeline .axis-row{grid-column:auto}
.timeline{grid-template-columns:fit-content(6rem) minmax(0,1fr);min-width:40rem}
.forest{grid-template-columns:minmax(0,1fr) auto}
.forest .name{grid-column:1/-1;margin-top:.7rem}.forest .bar-cell{grid-column:1/-1}
.forest .name:empty+.bar-cell{margin-top:.6rem}
.plot{grid-template-columns:2.7rem minmax(0,1fr);padding-right:.7rem}}
"""
_PRINT = """
@media print{@page{margin:14mm}body{background:#fff;font-size:10pt}.frame{max-width:none;padding:0}
nav,.skip{display:none}
header{padding:0 0 1rem}figure{border-color:#bbb}section{margin-top:1.6rem}
figure,.exchange,tr,.mind,li{break-inside:avoid}h2,h3,figcaption,caption{break-after:avoid}
thead{display:table-header-group}
article+article{break-before:page;border:0;padding:0}.scroll{overflow:visible}a{color:inherit;text-decoration:none}
.panels,.three{grid-template-columns:repeat(2,minmax(0,1fr))}
.printed::details-content{content-visibility:visible;block-size:auto}.printed>summary{display:none}table{font-size:8.5pt}
.wait{fill:var(--wait-ground)}.st-weight_verify{fill:var(--verify-ground)}
svg,.chip,.mind{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


def stylesheet() -> str:
    """Return the whole style sheet."""
    return (colour_rules() + _BASE + _NARROW + _PRINT).replace("\n", "")
