// The charts: uPlot as one module, whose default export is the class.
export { default } from "uplot";
