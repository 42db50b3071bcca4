/* The files of the pages, as they are in this folder. */
#pragma once

extern const char page_style[];   /* page.css */
extern const char page_script[];  /* page.js: charts that answer */
extern const char watch_script[]; /* watch.js: what the live page has besides */
