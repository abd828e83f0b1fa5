// Texts of the page whose contrast is below WCAG 2.2 AA: 4.5, or 3 for large ones.
() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return c.startsWith("color(srgb") ? [m[0]*255,m[1]*255,m[2]*255,m[3]??1] : [m[0],m[1],m[2],m[3]??1]; };
  const over = (a,b) => { const al=a[3]; return [0,1,2].map(i=>a[i]*al+b[i]*(1-al)).concat(1); };
  const lum = c => { const f=c.slice(0,3).map(v=>{v/=255;return v<=0.03928?v/12.92:Math.pow((v+0.055)/1.055,2.4)}); return 0.2126*f[0]+0.7152*f[1]+0.0722*f[2]; };
  const back = e => { const layers=[]; for(let n=e;n;n=n.parentElement){ layers.push(parse(getComputedStyle(n).backgroundColor)); } let c=[255,255,255,1]; for(const l of layers.reverse()) c=over(l,c); return c; };
  const bad=new Set();
  for (const e of document.querySelectorAll(".mcp-page *")) {
    if (!e.checkVisibility() || e.closest("svg") || e.closest(".visually-hidden")) continue;
    if (![...e.childNodes].some(n=>n.nodeType===3&&n.nodeValue.trim())) continue;
    const s=getComputedStyle(e), bg=back(e), fg=over(parse(s.color),bg);
    const a=lum(fg), b=lum(bg), ratio=(Math.max(a,b)+0.05)/(Math.min(a,b)+0.05);
    const size=parseFloat(s.fontSize), large=size>=24||(size>=18.66&&s.fontWeight>=700);
    if (ratio<(large?3:4.5)) bad.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.trim().slice(0,30)}`);
  }
  return [...bad];
}
