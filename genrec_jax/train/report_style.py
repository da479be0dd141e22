"""The style of report.html, in light and in dark."""

PAGE = """
:root{color-scheme:light dark;--page:#f6f6f4;--card:#fff;--ink:#1a1d23;
--muted:#646b78;--line:#e4e5e9;--soft:#eeeff2;--good:#0b6b40;--good-bg:#dff3e7;
--warn:#9a4b00;--warn-bg:#fdf0dd;--c-train:#8461cf;--c-valid:#2563d9;
--c-test:#d9650b;--c-perf:#0f8f7d}
@media(prefers-color-scheme:dark){:root{--page:#111317;--card:#1a1d23;
--ink:#e9ebef;--muted:#9ba3b0;--line:#2d323b;--soft:#252a32;--good:#6ddba2;
--good-bg:#15352a;--warn:#f2b266;--warn-bg:#3a2a14;--c-train:#b095f5;
--c-valid:#74abff;--c-test:#f7a353;--c-perf:#3fcfb6}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:clamp(1.7rem,4vw,2.3rem);line-height:1.15;margin:.1rem 0 .5rem;
letter-spacing:-.02em}
h2{font-size:1.25rem;margin:2.6rem 0 .8rem;letter-spacing:-.01em}
h3{font-size:.8rem;margin:0 0 .5rem;color:var(--muted);font-weight:600}
p{margin:.3rem 0}
.said{margin-top:1rem}
.eyebrow,.muted{color:var(--muted)}
.eyebrow{font-size:.85rem}.small{font-size:.85rem}
.lead{white-space:pre-line;max-width:68ch}
.lead.small{margin-bottom:.8rem;max-width:84ch}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:1.1rem 1.25rem;min-width:0}
.cards{display:grid;gap:1rem;
grid-template-columns:repeat(auto-fit,minmax(min(260px,100%),1fr))}
.charts{display:grid;gap:1rem;
grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}
.note{background:var(--warn-bg);color:var(--warn);border-radius:10px;
padding:.6rem .9rem;margin:.5rem 0}
.warn{color:var(--warn)}
.big{font-size:2.5rem;font-weight:650;letter-spacing:-.03em;line-height:1.1;
font-variant-numeric:tabular-nums}
.pill{display:inline-block;border-radius:99px;padding:.05rem .6rem;
background:var(--soft);color:var(--muted);font-size:.85rem;font-weight:600;
white-space:nowrap}
.pill.good{background:var(--good-bg);color:var(--good)}
.pill.bad{background:var(--warn-bg);color:var(--warn)}
.head{display:flex;justify-content:space-between;align-items:baseline;
gap:.5rem;flex-wrap:wrap}
.bars{display:grid;grid-template-columns:auto 1fr auto;gap:.25rem .6rem;
align-items:center;font-size:.82rem;color:var(--muted);margin-top:.7rem;
font-variant-numeric:tabular-nums}
.bar{height:8px;border-radius:4px;background:var(--soft)}
.bar i{display:block;height:100%;border-radius:4px;background:var(--muted);
opacity:.55}
.bar.own i{background:var(--c-test);opacity:1}
.bars.named{grid-template-columns:minmax(4em,max-content) 1fr auto;
margin-top:.3rem}
.bars .name{color:var(--ink);max-width:14em;overflow:hidden;
text-overflow:ellipsis;white-space:nowrap}
.bar{position:relative}
.bar b{position:absolute;top:3px;height:2px;background:var(--ink);opacity:.55}
dl.facts{display:flex;flex-wrap:wrap;gap:.7rem 2.2rem;margin:1.2rem 0 0}
.facts dt{font-size:.8rem;color:var(--muted)}
.facts dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;margin:0 -1.25rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.42rem .9rem;text-align:right;white-space:nowrap}
thead th{font-size:.82rem;color:var(--muted);font-weight:600;
border-bottom:1px solid var(--line)}
tbody th{font-weight:500}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card);
padding-left:1.25rem}
tr.family:not(:first-child)>*{border-top:1px solid var(--line)}
td.own{font-weight:650}
td.off{color:var(--muted)}
.user{margin-bottom:1rem}
.two{display:grid;grid-template-columns:1fr 1fr;gap:.5rem 2.2rem;
margin-top:.8rem}
ol,ul{list-style:none;margin:0;padding:0}
.items li{display:flex;gap:.6rem;align-items:baseline;padding:.22rem .5rem;
border-radius:6px}
.items li>span:nth-child(2){flex:1;min-width:0;overflow-wrap:anywhere}
.items .n{color:var(--muted);font-size:.8rem;min-width:1.4em;text-align:right;
font-variant-numeric:tabular-nums}
.items .r{color:var(--muted);font-size:.8rem;white-space:nowrap;
font-variant-numeric:tabular-nums}
.items .hit{background:var(--good-bg);color:var(--good);font-weight:600}
.items .hit *{color:inherit}
.items .hit .r{font-weight:400}
.past .r:not(:empty){min-width:6.2em}
.past li{border-left:2px solid var(--line);border-radius:0}
.past li.next{border-left-color:var(--c-test);background:var(--soft);
border-radius:0 6px 6px 0;margin-top:.25rem}
.score{display:inline-block;width:64px;height:6px;border-radius:3px;
background:var(--soft);margin-right:.5rem;vertical-align:.1em}
.score i{display:block;height:100%;border-radius:3px;background:currentColor;
opacity:.6}
details{margin-top:1rem}
.card>details:first-child{margin-top:0}
summary{cursor:pointer;font-weight:600;padding:.3rem 0}
.config{columns:2 380px;column-gap:2.2rem;font-size:.88rem}
.config div{break-inside:avoid;margin-bottom:1rem}
.config p{display:flex;gap:1rem;justify-content:space-between;margin:0;
padding:.12rem 0;border-bottom:1px solid var(--line)}
.config code{overflow-wrap:anywhere}
.config p>:last-child{text-align:right}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:3rem;color:var(--muted);font-size:.85rem}
@media(max-width:640px){main{padding:1.4rem .8rem 3rem}.two{
grid-template-columns:1fr;gap:1.1rem}.card{padding:.95rem 1rem}
.scroll{margin:0 -1rem}th:first-child{padding-left:1rem}
table{font-size:.94rem}th,td{padding:.42rem .4rem}.score{width:40px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""

CHARTS = """
figure{margin:0}
figcaption{display:flex;flex-wrap:wrap;gap:.15rem .9rem;align-items:baseline}
figcaption b{font-size:1rem;flex-basis:100%}
.key{font-size:.8rem;color:var(--muted);white-space:nowrap}
.key i{display:inline-block;width:1.1em;border-top:3px solid var(--c);
margin-right:.4em;vertical-align:.22em}
.key i.dash{border-top-style:dashed;border-top-width:2px}
.train{--c:var(--c-train)}.valid{--c:var(--c-valid)}.test{--c:var(--c-test)}
.perf,.other{--c:var(--c-perf)}.ref{--c:var(--muted)}.best{--c:var(--ink)}
.chart{display:block;width:100%;height:auto;margin-top:.4rem;overflow:visible}
.chart text{font-size:11.5px;fill:var(--muted);
font-variant-numeric:tabular-nums}
.chart .grid{stroke:var(--line)}
.chart .axis{stroke:var(--muted)}
.chart .curve{fill:none;stroke:var(--c);stroke-width:2;
stroke-linejoin:round;stroke-linecap:round}
.chart .dot{fill:var(--c);stroke:var(--card);stroke-width:1}
.chart .ref,.chart .best{stroke:var(--c);stroke-width:1.3;
stroke-dasharray:5 4;opacity:.75}
.chart .best{stroke-dasharray:2 3}
.chart path.ref{fill:none}
.chart .whisker{fill:none;stroke:var(--c-test);stroke-width:1.4;opacity:.55}
.chart .rug{fill:none;stroke:var(--muted);opacity:.8}
.chart .area{fill:var(--c);opacity:.22}
.chart .outline{fill:none;stroke:var(--c);stroke-width:1.6;
stroke-linejoin:round}
.band{opacity:0}.band:hover{opacity:1}
.band rect{fill:transparent;pointer-events:all}
.band line{stroke:var(--muted);stroke-width:1}
.band text{fill:var(--ink);font-weight:600}
@media(max-width:640px){.chart text{font-size:14px}}
"""

CSS = PAGE + CHARTS
