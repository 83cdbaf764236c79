// Colours of output: AnsiUp turns escape sequences into elements. Set `use_classes = true`: the content policy
// refuses the style attributes it writes otherwise.
export { AnsiUp } from "ansi_up";
