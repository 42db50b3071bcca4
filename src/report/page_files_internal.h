/* The files of the pages, as they are in this folder. */
#pragma once

extern const char page_style[];   /* page.css */
extern const char watch_script[]; /* watch.js, of the live page */
