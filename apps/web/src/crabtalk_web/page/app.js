// The entry point of the page: opens this browser's device, and shows the view of the address.

import { Device } from "./device/device.js";
import { App } from "./view/app.js";
import { placeNotices } from "./view/notices.js";
import { Router, takeFragment } from "./view/router.js";
import { followTheme } from "./view/theme.js";

// First of all, before anything can fail: a key must not stay in the address.
const fragment = takeFragment();

followTheme();
placeNotices(document.body);
const device = await Device.open();
new App(device, new Router(), fragment).start(document.getElementById("app"));
document.documentElement.dataset.ready = "true";
