/* Holds the style sheet and the scripts of the pages. */
#include "report/page_files_internal.h"

#define HOLD(name, file) __asm__(".section .rodata\n.global " name "\n" name ":\n.incbin \"src/report/" file "\"\n.byte 0\n.text\n")
HOLD("page_style", "page.css");
HOLD("page_script", "page.js");
HOLD("watch_script", "watch.js");
