/* Keeps an MCP page current without reloading it: requests the part that changes, and updates only what differs.
   It sets no markup of its own, so texts of servers and models stay texts. */
(function () {
  "use strict";

  var intervalMs = 5000;
  var TIMEOUT_MS = 15000;
  /* Attributes that only the browser's page has. */
  var KEPT = ["open", "hidden", "disabled"];
  var live = document.getElementById("mcp-live");
  var dot = document.getElementById("mcp-live-dot");
  var status = document.getElementById("mcp-live-status");
  var etag = null;
  var timer = null;
  var busy = false;
  var again = false;
  /* Elements whose content is requested when they are open. */
  var LOADING = "details[data-loads][open]";
  var MOST_LOADED = 50;

  function liveAddress() {
    var address = new URL(window.location.href);
    address.hash = "";
    address.searchParams.set("live", "");
    Array.from(live.querySelectorAll(LOADING)).slice(0, MOST_LOADED).forEach(function (each) {
      address.searchParams.append("open", each.id);
    });
    return address;
  }

  /* The status is announced to screen readers, so it changes only when it differs. */
  function showStatus(kind, text) {
    dot.className = "status-dot" + (kind ? " status-dot-" + kind : "");
    if (status.textContent !== text) {
      status.textContent = text;
    }
  }

  function showFreshness() {
    if (document.getElementById("mcp-outage")) {
      showStatus("error", "Stale");
    } else {
      showStatus("live", "Live");
    }
  }

  /* Update the page to its new version, element by element. What the reader did stays: open details, texts in fields,
     the focus. */
  function merge(old, now) {
    if (now.hasAttribute("data-later")) {
      return;
    }
    Array.from(now.attributes).forEach(function (attribute) {
      if (old.getAttribute(attribute.name) !== attribute.value) {
        old.setAttribute(attribute.name, attribute.value);
      }
    });
    Array.from(old.attributes).forEach(function (attribute) {
      if (!now.hasAttribute(attribute.name) && !KEPT.includes(attribute.name)) {
        old.removeAttribute(attribute.name);
      }
    });
    if (old.localName === "time") {
      return;
    }
    var named = {};
    Array.from(old.children).forEach(function (child) {
      if (child.id) {
        named[child.id] = child;
      }
    });
    var place = old.firstChild;
    Array.from(now.childNodes).forEach(function (child) {
      var match = child.id ? named[child.id] : place;
      if (match && (match.nodeName !== child.nodeName || (match.id || "") !== (child.id || ""))) {
        match = null;
      }
      if (!match) {
        old.insertBefore(document.importNode(child, true), place);
        return;
      }
      if (match !== place) {
        old.insertBefore(match, place);
      } else {
        place = place.nextSibling;
      }
      if (child.nodeType === Node.ELEMENT_NODE) {
        merge(match, child);
      } else if (match.nodeValue !== child.nodeValue) {
        match.nodeValue = child.nodeValue;
      }
    });
    while (place) {
      var next = place.nextSibling;
      old.removeChild(place);
      place = next;
    }
  }

  function refresh() {
    if (busy || document.hidden) {
      return Promise.resolve();
    }
    busy = true;
    return fetch(liveAddress(), {
      cache: "no-store",
      credentials: "same-origin",
      redirect: "manual",
      headers: etag ? {"If-None-Match": etag} : {},
      signal: AbortSignal.timeout(TIMEOUT_MS)
    }).then(function (response) {
      var seconds = parseFloat(response.headers.get("Refresh-After"));
      if (seconds > 0) {
        intervalMs = 1000 * seconds;
      }
      if (response.status === 304) {
        return null;
      }
      if (response.type === "opaqueredirect" || response.status === 401) {
        throw new Error("signed out, reload the page");
      }
      if (!response.ok) {
        throw new Error("Flower returned an error (" + response.status + ")");
      }
      etag = response.headers.get("Etag");
      return response.text();
    }).then(function (text) {
      if (text !== null) {
        var page = new DOMParser().parseFromString("<div>" + text + "</div>", "text/html");
        keepFocus(function () {
          update(page.body.firstElementChild);
        });
        showTimes();
        filterRows();
      }
      showFreshness();
    }).catch(function (error) {
      showStatus("error", "Stale: " + (error.name === "TypeError" || error.name === "TimeoutError"
        ? "Flower does not answer" : error.message));
    }).then(function () {
      busy = false;
      if (again) {
        again = false;
        return refresh();
      }
    });
  }

  /* What was opened is requested at once, or as soon as the current request has ended. */
  function load() {
    if (busy) {
      again = true;
    } else {
      refresh().then(schedule);
    }
  }

  /* A notice alone means an outage: the rest of the page stays as it was. */
  function update(now) {
    var notice = now.children.length === 1 && now.firstElementChild;
    if (notice && notice.id === "mcp-outage") {
      var former = document.getElementById(notice.id);
      if (former) {
        merge(former, notice);
      } else {
        live.insertBefore(document.importNode(notice, true), live.firstChild);
      }
      return;
    }
    now.id = live.id;
    merge(live, now);
  }

  /* A moved element loses the focus, which matters to those who use the keyboard. */
  function keepFocus(change) {
    var focused = document.activeElement;
    change();
    if (focused !== document.activeElement && live.contains(focused)) {
      focused.focus({preventScroll: true});
    }
  }

  function schedule() {
    window.clearTimeout(timer);
    if (!document.hidden) {
      timer = window.setTimeout(function () {
        refresh().then(schedule);
      }, intervalMs);
    }
  }

  var UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  var ABSOLUTE = "mcp-absolute-times";
  var switchOfTimes = document.getElementById("mcp-times");
  var isAbsolute = false;
  try {
    isAbsolute = window.localStorage.getItem(ABSOLUTE) === "1";
  } catch (error) {
    /* A browser that stores nothing begins with ages each time. */
  }

  function switchTimes() {
    isAbsolute = !isAbsolute;
    try {
      window.localStorage.setItem(ABSOLUTE, isAbsolute ? "1" : "0");
    } catch (error) {
      /* As above. */
    }
    showTimes();
  }

  function inUtc(at) {
    return at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
  }

  function showTimes() {
    switchOfTimes.setAttribute("aria-pressed", String(isAbsolute));
    var now = Date.now();
    live.querySelectorAll("time[datetime]").forEach(function (element) {
      var at = new Date(element.getAttribute("datetime"));
      var seconds = Math.max(0, Math.round((now - at.getTime()) / 1000));
      var unit = UNITS.find(function (each) { return seconds >= each[0]; }) || UNITS[3];
      var text = seconds < 2 ? "just now" : Math.floor(seconds / unit[0]) + " " + unit[1] + " ago";
      text = isAbsolute ? inUtc(at) : text;
      if (element.textContent !== text) {
        element.textContent = text;
      }
      element.title = inUtc(at) + ", here " + at.toLocaleString();
    });
  }

  function filterRows() {
    var field = document.getElementById("mcp-search");
    if (!field) {
      return;
    }
    var wanted = field.value.trim().toLowerCase();
    Array.from(document.getElementById(field.dataset.rows).children).forEach(function (row) {
      row.hidden = Boolean(wanted) && !(row.dataset.words || "").includes(wanted);
    });
  }

  function announce(text, isError) {
    var toast = document.createElement("div");
    toast.className = "toast align-items-center border-0 text-bg-" + (isError ? "danger" : "success");
    toast.setAttribute("role", isError ? "alert" : "status");
    var body = document.createElement("div");
    body.className = "toast-body";
    body.textContent = text;
    toast.appendChild(body);
    document.getElementById("toast-container").appendChild(toast);
    toast.addEventListener("hidden.bs.toast", function () { toast.remove(); });
    window.bootstrap.Toast.getOrCreateInstance(toast, {delay: isError ? 10000 : 5000}).show();
  }

  /* Outside of localhost and https, browsers have no clipboard for scripts, but copy what is selected. */
  function copy(button) {
    var text = button.dataset.copy;
    var copied = navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject(new Error("no clipboard"));
    copied.catch(function () {
      var field = document.createElement("textarea");
      field.value = text;
      document.body.appendChild(field);
      field.select();
      var done = document.execCommand("copy");
      field.remove();
      button.focus();
      if (!done) {
        throw new Error("The browser does not copy: " + text);
      }
    }).then(function () {
      announce("Copied: " + text);
    }, function (error) {
      announce(error.message, true);
    });
  }

  /* A link to a tool opens it. */
  function openTarget() {
    var name = "";
    try {
      name = decodeURIComponent(window.location.hash.slice(1));
    } catch (error) {
      return;
    }
    var target = name && document.getElementById(name);
    if (target && target.localName === "details") {
      target.open = true;
      target.scrollIntoView();
    }
  }

  function act(button) {
    if (button.dataset.confirm && !window.confirm(button.dataset.confirm)) {
      return;
    }
    button.disabled = true;
    fetch(button.dataset.action, {
      method: "POST",
      credentials: "same-origin",
      redirect: "manual",
      headers: {"X-XSRFToken": document.querySelector("input[name=_xsrf]").value}
    }).then(function (response) {
      return response.text().then(function (text) {
        if (!response.ok) {
          throw new Error(text || "Flower refused the request (" + response.status + ")");
        }
        return JSON.parse(text);
      });
    }).then(function (answer) {
      var lines = Object.keys(answer.workers).map(function (worker) {
        return worker + ": " + answer.workers[worker];
      });
      announce(lines.join("; "), !answer.done);
      return refresh();
    }).catch(function (error) {
      announce(error.message, true);
    }).then(function () {
      button.disabled = false;
    });
  }

  live.addEventListener("input", function (event) {
    if (event.target.id === "mcp-search") {
      filterRows();
    }
  });
  live.addEventListener("click", function (event) {
    var button = event.target.closest("button[data-action]");
    if (button) {
      act(button);
    }
    var copying = event.target.closest("button[data-copy]");
    if (copying) {
      copy(copying);
    }
  });
  /* This event does not bubble. */
  live.addEventListener("toggle", function (event) {
    if (event.target.matches(LOADING)) {
      load();
    }
  }, true);
  switchOfTimes.addEventListener("click", switchTimes);
  window.addEventListener("hashchange", openTarget);
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) {
      window.clearTimeout(timer);
      showStatus("", "Paused");
    } else {
      refresh().then(schedule);
    }
  });
  window.setInterval(showTimes, 1000);
  showTimes();
  showFreshness();
  openTarget();
  schedule();
}());
