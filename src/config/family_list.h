/* All model families, in the order of Family. Each line declares a FamilyRule family_NAME, defined
 * in src/families/NAME.c. */
FAMILY(zaya)
FAMILY(llama)
FAMILY(mpt)
FAMILY(gpt2)
FAMILY(flux)
FAMILY(olmo)
FAMILY(gpt_oss)
FAMILY(deepseek)
FAMILY(gemma)
FAMILY(smollm3)
FAMILY(phi3)
FAMILY(granite)
