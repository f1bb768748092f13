"""How the report looks: light and dark as the reader's system is, readable on paper too."""

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--ground:#fff;--raised:#f6f7f9;--text:#1b1f24;--muted:#59636e;--rule:#d9dee4;
--bar:#2f6fb3;--clean:#1a7f37;--plan:#2f6fb3;--findings:#9a6700;--stopped:#b42318}
@media (prefers-color-scheme:dark){:root{--ground:#14171b;--raised:#1d2126;--text:#e6e9ec;--muted:#9aa4af;
--rule:#343b43;--bar:#6ba6e3;--clean:#4ac26b;--plan:#6ba6e3;--findings:#d4a72c;--stopped:#ff8578}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}
h2{font-size:19px;margin:40px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--rule)}
p{margin:6px 0}
code{font:13px/1.4 ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
.muted{color:var(--muted)}
.verdict{margin:20px 0;padding:14px 18px;background:var(--raised);border-left:5px solid var(--rule);border-radius:4px}
.verdict strong{font-size:17px}
.clean{border-color:var(--clean)}.clean strong{color:var(--clean)}
.plan{border-color:var(--plan)}.plan strong{color:var(--plan)}
.findings{border-color:var(--findings)}.findings strong{color:var(--findings)}
.stopped{border-color:var(--stopped)}.stopped strong{color:var(--stopped)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:0}
.figures>div{display:flex;flex-direction:column;background:var(--raised);border-radius:4px;padding:12px 14px}
.figures dt{color:var(--muted);font-size:13px;margin-bottom:auto}
.figures dd{margin:0;font-size:23px;font-variant-numeric:tabular-nums}
.figures dd.muted{font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:20px 28px}
figure{margin:0}figcaption{font-weight:600;margin-bottom:6px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--text);font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg .label{fill:var(--muted)}svg .small{font-size:11px}
svg .value{font-variant-numeric:tabular-nums}
svg .bar,svg .dot{fill:var(--bar)}svg .line{fill:none;stroke:var(--bar);stroke-width:2.5;stroke-linejoin:round}
svg .axis{stroke:var(--muted)}svg .grid{stroke:var(--rule);stroke-dasharray:3 4}
.wide{overflow-x:auto;margin-bottom:16px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;vertical-align:top;padding:6px 16px 6px 0;border-bottom:1px solid var(--rule);
overflow-wrap:break-word;max-width:460px}
th{color:var(--muted);font-weight:600;white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
@media print{main{max-width:none;padding:0}section{break-inside:avoid-page}}
"""
